//! The two ways in which agents talk to models here: messages and chat completions, as far as these agents use
//! them. Pure: bodies in, bodies out.

use serde_json::{Value, json};

use super::model::Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    Messages,
    Chat,
}

/// What an agent told its model of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolResult {
    pub(crate) text: String,
    /// Whether it was told as an error, where the speech has a word for that.
    pub(crate) failed: bool,
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

impl Speech {
    /// By method and path.
    pub(crate) fn of(what: &str) -> Option<Self> {
        match what.strip_prefix("POST ")? {
            path if path.ends_with("/messages") => Some(Self::Messages),
            path if path.ends_with("/chat/completions") => Some(Self::Chat),
            _ => None,
        }
    }

    /// Whether the model may call something.
    pub(crate) fn has_tools(body: &Value) -> bool {
        body["tools"].as_array().is_some_and(|tools| !tools.is_empty())
    }

    /// Every result in the conversation so far.
    pub(crate) fn results(self, body: &Value) -> Vec<ToolResult> {
        let messages = body["messages"].as_array().into_iter().flatten();
        match self {
            Self::Messages => messages
                .flat_map(|message| message["content"].as_array().into_iter().flatten())
                .filter(|part| part["type"] == "tool_result")
                .map(|part| ToolResult { text: text(&part["content"]), failed: part["is_error"] == true })
                .collect(),
            Self::Chat => messages
                .filter(|message| message["role"] == "tool")
                .map(|message| ToolResult { text: text(&message["content"]), failed: false })
                .collect(),
        }
    }

    /// The step as this speech says it: the kind of content, and the content.
    pub(crate) fn reply(self, body: &Value, step: Step) -> (&'static str, String) {
        let streams = body["stream"] == true;
        let model = &body["model"];
        let number = self.results(body).len();
        match (self, streams) {
            (Self::Messages, false) => (JSON, message(model, &block(&step, number)).to_string()),
            (Self::Messages, true) => (EVENTS, message_events(model, &block(&step, number))),
            (Self::Chat, false) => (JSON, completion(model, &step, number).to_string()),
            (Self::Chat, true) => (EVENTS, completion_events(model, &step, number)),
        }
    }
}

/// Content is a string, or parts of which some are text.
fn text(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    content.as_str().map_or_else(|| parts.collect(), str::to_owned)
}

fn block(step: &Step, number: usize) -> Value {
    match step {
        Step::Say(words) => json!({"type": "text", "text": words}),
        Step::Call { tool, arguments } => {
            json!({"type": "tool_use", "id": format!("toolu_step{number}"), "name": tool, "input": arguments})
        }
    }
}

fn message(model: &Value, block: &Value) -> Value {
    json!({
        "id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": [block],
        "stop_reason": stop_reason(block), "stop_sequence": null, "usage": message_usage(),
    })
}

fn stop_reason(block: &Value) -> &'static str {
    if block["type"] == "text" { "end_turn" } else { "tool_use" }
}

fn message_usage() -> Value {
    json!({
        "input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
    })
}

fn message_events(model: &Value, block: &Value) -> String {
    let mut opening = message(model, block);
    opening["content"] = json!([]);
    opening["stop_reason"] = Value::Null;
    // A block begins empty and is filled by what follows.
    let mut empty = block.clone();
    let delta = if block["type"] == "text" {
        empty["text"] = json!("");
        json!({"type": "text_delta", "text": block["text"]})
    } else {
        empty["input"] = json!({});
        json!({"type": "input_json_delta", "partial_json": block["input"].to_string()})
    };
    let stop = json!({"stop_reason": stop_reason(block), "stop_sequence": null});
    let events = [
        json!({"type": "message_start", "message": opening}),
        json!({"type": "content_block_start", "index": 0, "content_block": empty}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": stop, "usage": message_usage()}),
        json!({"type": "message_stop"}),
    ];
    let named = |event: Value| (event["type"].as_str().unwrap_or_default().to_owned(), event);
    events.map(named).map(|(name, event)| format!("event: {name}\ndata: {event}\n\n")).concat()
}

/// What is said, and why nothing more is.
fn said(step: &Step, number: usize) -> (Value, &'static str) {
    match step {
        Step::Say(words) => (json!({"role": "assistant", "content": words}), "stop"),
        Step::Call { tool, arguments } => {
            let function = json!({"name": tool, "arguments": arguments.to_string()});
            let call = json!({
                "index": 0, "id": format!("call_step{number}"), "type": "function", "function": function,
            });
            (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
        }
    }
}

fn completion_usage() -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
}

fn completion(model: &Value, step: &Step, number: usize) -> Value {
    let (message, reason) = said(step, number);
    json!({
        "id": "chatcmpl-scripted", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": completion_usage(),
    })
}

fn completion_events(model: &Value, step: &Step, number: usize) -> String {
    let (delta, reason) = said(step, number);
    let chunk = |choices: Value, usage: Value| {
        json!({
            "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": model,
            "choices": choices, "usage": usage,
        })
    };
    let chunks = [
        chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null),
        chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null),
        chunk(json!([]), completion_usage()),
    ];
    chunks.map(|chunk| format!("data: {chunk}\n\n")).concat() + "data: [DONE]\n\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_were_told() {
        let messages = json!({"messages": [
            {"role": "user", "content": "do it"},
            {"role": "user", "content": [
                {"type": "tool_result", "content": [{"type": "text", "text": "one\n"}]},
                {"type": "text", "text": "not a result"},
                {"type": "tool_result", "content": "two", "is_error": true},
            ]},
        ]});
        let expected = [("one\n", false), ("two", true)]
            .map(|(text, failed)| ToolResult { text: text.to_owned(), failed });
        assert_eq!(Speech::Messages.results(&messages), expected);
        let chat =
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "out\n"}]});
        assert_eq!(Speech::Chat.results(&chat), [ToolResult { text: "out\n".to_owned(), failed: false }]);
    }

    #[test]
    fn the_speech_is_known_by_its_path() {
        assert_eq!(Speech::of("POST /v1/messages"), Some(Speech::Messages));
        assert_eq!(Speech::of("POST /v1/chat/completions"), Some(Speech::Chat));
        assert_eq!(Speech::of("POST /v1/messages/count_tokens"), None);
        assert_eq!(Speech::of("GET /v1/messages"), None);
    }
}
