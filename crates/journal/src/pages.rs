//! Reading rows directly from the pages of a damaged file, when the B-trees no longer lead to them.
//!
//! A truncated file may have lost the root page, and a file with a damaged header cannot be opened
//! at all; the pages with the rows are still there. This reads them by the documented format and
//! trusts nothing: a row with the wrong number or types of columns is skipped. Format:
//! <https://sqlite.org/fileformat2.html>.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::row::{DocRow, EventRow, TaskRow};

/// The page size of every journal ever made.
const PAGE: usize = 4096;
const HEAD_BYTES: usize = 100;
const TABLE_LEAF: u8 = 0x0d;
const INDEX_LEAF: u8 = 0x0a;
/// No row of the journal is larger.
const MAX_ROW_BYTES: usize = 64 * 1024 * 1024;

/// One row that was recognised.
#[derive(Debug)]
pub(crate) enum Found {
    Task(TaskRow),
    Event(EventRow),
    Doc(DocRow),
    Number(String, u64),
    Secret(String, [u8; 32]),
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

/// Passes every recognised row on any page to `sink`, in no order. Only errors of the sink are
/// returned.
pub(crate) fn scan<E>(path: &Path, sink: &mut dyn FnMut(Found) -> Result<(), E>) -> Result<(), E> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut page = vec![0; PAGE];
    for number in 1u32.. {
        match read_page(&file, number, &mut page) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => continue,
        }
        let start = if number == 1 { HEAD_BYTES } else { 0 };
        for found in cells(&file, &page, start) {
            sink(found)?;
        }
    }
    Ok(())
}

/// Returns false behind the end of the file. A last page that was cut off counts as absent.
fn read_page(file: &File, number: u32, page: &mut [u8]) -> io::Result<bool> {
    let at = u64::from(number.saturating_sub(1)) * PAGE as u64;
    match file.read_exact_at(page, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        done => done.map(|()| true),
    }
}

fn cells(file: &File, page: &[u8], start: usize) -> Vec<Found> {
    let kind = page[start];
    if kind != TABLE_LEAF && kind != INDEX_LEAF {
        return Vec::new();
    }
    let count = usize::from(u16::from_be_bytes([page[start + 3], page[start + 4]]));
    let pointers = page[start + 8..].chunks_exact(2).take(count);
    let at = pointers.map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
    at.filter_map(|at| cell(file, page.get(at..)?, kind)).collect()
}

fn cell(file: &File, mut bytes: &[u8], kind: u8) -> Option<Found> {
    let size = usize::try_from(varint(&mut bytes)?).ok().filter(|size| *size <= MAX_ROW_BYTES)?;
    if kind == INDEX_LEAF {
        // Only `meta` is wanted here, and its rows are short.
        return single(&record(bytes.get(..size)?)?);
    }
    let number = u64::try_from(varint(&mut bytes)?).ok()?;
    let values = record(&payload(file, bytes, size)?)?;
    let found = task(number, &values).map(Found::Task);
    found.or_else(|| event(number, &values).map(Found::Event)).or_else(|| doc(&values).map(Found::Doc))
}

/// The bytes of a row, including its overflow pages.
fn payload(file: &File, bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    let most = PAGE - 35;
    if size <= most {
        return bytes.get(..size).map(<[u8]>::to_vec);
    }
    let least = (PAGE - 12) * 32 / 255 - 23;
    let fitting = least + (size - least) % (PAGE - 4);
    let here = if fitting <= most { fitting } else { least };
    let mut whole = bytes.get(..here)?.to_vec();
    let mut next = u32::from_be_bytes(bytes.get(here..here + 4)?.try_into().ok()?);
    let mut page = vec![0; PAGE];
    while whole.len() < size {
        if next == 0 || !read_page(file, next, &mut page).ok()? {
            return None;
        }
        let part = (size - whole.len()).min(PAGE - 4);
        whole.extend_from_slice(&page[4..4 + part]);
        next = u32::from_be_bytes([page[0], page[1], page[2], page[3]]);
    }
    Some(whole)
}

fn record(bytes: &[u8]) -> Option<Vec<Value>> {
    let mut head = bytes;
    let head_bytes = usize::try_from(varint(&mut head)?).ok()?;
    let mut body = bytes.get(head_bytes..)?;
    let mut head = bytes.get(bytes.len() - head.len()..head_bytes)?;
    let mut values = Vec::new();
    while !head.is_empty() {
        values.push(value(varint(&mut head)?, &mut body)?);
    }
    Some(values)
}

fn value(kind: i64, body: &mut &[u8]) -> Option<Value> {
    let mut take = |count: usize| {
        let (taken, rest) = body.split_at_checked(count)?;
        *body = rest;
        Some(taken)
    };
    match kind {
        0 => Some(Value::Null),
        1..=6 => {
            take([1, 2, 3, 4, 6, 8][usize::try_from(kind - 1).ok()?]).map(|it| Value::Integer(integer(it)))
        }
        8 | 9 => Some(Value::Integer(kind - 8)),
        12.. => {
            let taken = take(usize::try_from((kind - 12) / 2).ok()?)?.to_vec();
            if kind % 2 == 0 {
                Some(Value::Blob(taken))
            } else {
                String::from_utf8(taken).ok().map(Value::Text)
            }
        }
        _ => None,
    }
}

fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes[0] & 0x80 == 0 { 0 } else { -1 };
    bytes.iter().fold(sign, |value, byte| (value << 8) | i64::from(*byte))
}

fn varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0i64;
    for index in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if index == 8 {
            return Some((value << 8) | i64::from(*byte));
        }
        value = (value << 7) | i64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(value)
}

/// Splits off the column that format 4 added; rows of older formats, also in a migrated file, do
/// not have it.
fn split_tags(values: &[Value], old_columns: usize) -> Option<(&[Value], String)> {
    match values.split_at_checked(old_columns)? {
        (values, []) => Some((values, String::new())),
        (values, [Value::Text(tags)]) => Some((values, tags.clone())),
        _ => None,
    }
}

fn task(number: u64, values: &[Value]) -> Option<TaskRow> {
    let (values, tags) = split_tags(values, 10)?;
    let [
        Value::Null,
        Value::Text(id),
        token,
        Value::Text(session),
        parent,
        name,
        started,
        ended,
        bytes,
        Value::Text(body),
    ] = values
    else {
        return None;
    };
    Some(TaskRow {
        id: id.clone(),
        number,
        token: text(token).ok()?,
        session: session.clone(),
        parent: text(parent).ok()?,
        name: text(name).ok()?,
        started_ms: whole(started).ok()??,
        ended_ms: whole(ended).ok()?,
        output_bytes: u64::try_from(whole(bytes).ok()??).ok()?,
        body: body.clone(),
        tags,
    })
}

fn event(seq: u64, values: &[Value]) -> Option<EventRow> {
    let (values, tags) = split_tags(values, 6)?;
    let [Value::Null, Value::Integer(at_ms), Value::Text(kind), task, session, Value::Text(body)] = values
    else {
        return None;
    };
    let (task, session) = (text(task).ok()?, text(session).ok()?);
    Some(EventRow { seq, at_ms: *at_ms, kind: kind.clone(), task, session, body: body.clone(), tags })
}

fn doc(values: &[Value]) -> Option<DocRow> {
    let [Value::Null, Value::Text(kind), Value::Text(key), Value::Text(body)] = values else { return None };
    Some(DocRow { kind: kind.clone(), key: key.clone(), body: Some(body.clone()) })
}

fn single(values: &[Value]) -> Option<Found> {
    match values {
        [Value::Text(key), Value::Integer(number)] => {
            Some(Found::Number(key.clone(), u64::try_from(*number).ok()?))
        }
        [Value::Text(key), Value::Blob(bytes)] => {
            Some(Found::Secret(key.clone(), bytes.as_slice().try_into().ok()?))
        }
        _ => None,
    }
}

/// A column of another type: this is not a row of the journal.
struct Odd;

/// A text that may be absent.
fn text(value: &Value) -> Result<Option<String>, Odd> {
    match value {
        Value::Null => Ok(None),
        Value::Text(text) => Ok(Some(text.clone())),
        _ => Err(Odd),
    }
}

/// An integer that may be absent.
fn whole(value: &Value) -> Result<Option<i64>, Odd> {
    match value {
        Value::Null => Ok(None),
        Value::Integer(number) => Ok(Some(*number)),
        _ => Err(Odd),
    }
}
