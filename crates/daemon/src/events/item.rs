//! Events as they are sent to subscriptions: read from their rows, and written once for all subscriptions.

use belay_journal::EventRow;
use belay_protocol::Timestamp;
use belay_protocol::event::{Event, EventInfo, EventKind};
use belay_protocol::methods::Notify as _;
use belay_protocol::methods::notifications::EventItem;
use belay_protocol::rpc::RequestId;

/// Events on their way to subscriptions: serialised once, however many subscriptions there are.
pub(super) struct EventBodies {
    pub(super) after: u64,
    pub(super) last: u64,
    pub(super) events: Vec<EventBody>,
}

pub(super) struct EventBody {
    pub(super) row: EventRow,
    pub(super) body: Vec<u8>,
}

impl EventBodies {
    pub(super) fn of(after: u64, rows: &[&EventRow]) -> Option<Self> {
        let last = rows.last()?.seq;
        let events =
            rows.iter().filter_map(|row| Some(EventBody { row: (*row).clone(), body: event_body(row)? }));
        Some(Self { after, last, events: events.collect() })
    }
}

pub(super) fn event_body(row: &EventRow) -> Option<Vec<u8>> {
    serde_json::to_vec(&event_info(row)).ok()
}

/// The beginning of an `event/item` notification of this subscription. The event is the last member of its parameters.
pub(super) fn item_prefix(request: &RequestId, follow: u64) -> Option<Vec<u8>> {
    let request = serde_json::to_string(request).ok()?;
    let method = EventItem::NAME;
    let prefix = format!(
        r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"request":{request},"follow":{follow},"event":"#
    );
    Some(prefix.into_bytes())
}

/// Appends an `event/item` notification.
pub(super) fn push_item(lines: &mut Vec<u8>, prefix: &[u8], body: &[u8]) {
    lines.extend_from_slice(prefix);
    lines.extend_from_slice(body);
    lines.extend_from_slice(b"}}\n");
}

/// An event as it was recorded; one that cannot be read is lost.
pub(super) fn event_info(row: &EventRow) -> EventInfo {
    let event = match EventKind::from_name(&row.kind) {
        None | Some(EventKind::Lost) => Event::Lost,
        Some(_) => serde_json::from_str(&row.body).unwrap_or(Event::Lost),
    };
    EventInfo { seq: row.seq, at: Timestamp(row.at_ms), event }
}

#[cfg(test)]
mod tests {
    use belay_protocol::event::EventItemNotification;

    use super::*;

    #[test]
    fn item_is_a_notification_of_the_table() {
        let row = EventRow { seq: 3, at_ms: 5, ..EventRow::default() };
        for request in [RequestId::Number(7), RequestId::Text("a\"b".to_owned())] {
            let mut lines = Vec::new();
            push_item(&mut lines, &item_prefix(&request, 9).unwrap(), &event_body(&row).unwrap());
            let params = EventItemNotification { request, follow: 9, event: event_info(&row) };
            let expected = crate::requests::notification_line::<EventItem>(&params).unwrap();
            assert_eq!(String::from_utf8(lines).unwrap(), String::from_utf8(expected).unwrap());
        }
    }

    #[test]
    fn unreadable_row_becomes_lost() {
        let event = Event::TaskRemoved { task: "sh-1".to_owned(), session: "se-1".to_owned() };
        let whole = EventRow {
            seq: 7,
            at_ms: 1_000,
            kind: event.kind().name().to_owned(),
            body: serde_json::to_string(&event).unwrap(),
            ..EventRow::default()
        };
        let read = |row: &EventRow| {
            let EventInfo { seq, at, event } = event_info(row);
            assert_eq!((seq, at), (7, Timestamp(1_000)));
            event
        };
        assert_eq!(read(&whole), event);
        for body in ["", "{}", "{\"type\":\"task.removed\"", r#"{"type":"task.removed","task":"sh-1"}"#] {
            assert_eq!(read(&EventRow { body: body.to_owned(), ..whole.clone() }), Event::Lost, "{body}");
        }
        for kind in [belay_journal::LOST_KIND, "task.invented", ""] {
            assert_eq!(read(&EventRow { kind: kind.to_owned(), ..whole.clone() }), Event::Lost, "{kind}");
        }
        assert_eq!(belay_journal::LOST_KIND, EventKind::Lost.name());
    }
}
