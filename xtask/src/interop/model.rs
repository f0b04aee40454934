//! A model that says what a script tells it to: a small HTTP server on loopback that an agent takes for the real one. It
//! keeps every request, so that what the agent told its model can be read back. What the two sides say is in `speech`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::speech::{Speech, ToolResult};
use crate::run::Outcome;

/// More than an agent ever sends, and less than would hurt.
const MAX_BODY_BYTES: usize = 64 << 20;

/// An agent that says nothing for so long has gone.
const SILENCE: Duration = Duration::from_mins(1);

/// What the model does when it is asked for the next time.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Call { tool: &'static str, arguments: Value },
    Say(&'static str),
}

#[derive(Debug)]
pub(crate) struct Model {
    port: u16,
    desk: Arc<Desk>,
}

/// What all connections share.
#[derive(Debug)]
struct Desk {
    script: Vec<Step>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
}

/// One request as it came.
#[derive(Clone, Debug)]
struct Asked {
    /// `POST /v1/messages`.
    what: String,
    body: Value,
}

impl Model {
    /// Answers with one step after the other; the last one again for whatever comes after it.
    pub(crate) fn start(script: Vec<Step>) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let desk = Arc::new(Desk { script, asked: Mutex::default(), over: AtomicBool::new(false) });
        let shared = Arc::clone(&desk);
        std::thread::Builder::new().name("model".to_owned()).spawn(move || serve(&listener, &shared))?;
        Ok(Self { port, desk })
    }

    /// Where an agent finds it.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What the agent's tools gave, in order, as the agent told it.
    pub(crate) fn results(&self) -> Vec<ToolResult> {
        // A request carries the whole conversation; one that an agent makes for itself beside it carries none of it.
        let all = self
            .desk
            .asked()
            .into_iter()
            .filter_map(|asked| Speech::of(&asked.what).map(|speech| speech.results(&asked.body)));
        all.max_by_key(Vec::len).unwrap_or_default()
    }

    /// What it was asked, in a few words: for whoever wonders why nothing happens.
    pub(crate) fn asked(&self) -> String {
        let lines: Vec<String> = self.desk.asked().into_iter().map(|asked| asked.what).collect();
        if lines.is_empty() { "it was never asked".to_owned() } else { lines.join(", ") }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.desk.over.store(true, Ordering::SeqCst);
        // The listener waits in `accept`; somebody has to come.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Desk {
    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, what: String, body: Value) -> Answer {
        let answer = match Speech::of(&what) {
            Some(speech) => {
                let (kind, text) = speech.reply(&body, self.next(speech, &body));
                Answer { status: "200 OK", kind, text }
            }
            // An agent that wants out comes here too, because this is the proxy that it was given. It goes no further.
            None if what.starts_with("CONNECT ") => {
                Answer { status: "403 Forbidden", ..Answer::json(json!({})) }
            }
            None if what.contains("count_tokens") => Answer::json(json!({"input_tokens": 100})),
            None if what.ends_with("/models") => Answer::json(json!({"data": [], "has_more": false})),
            None => Answer::json(json!({})),
        };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked { what, body });
        answer
    }

    /// Each call of a tool takes the conversation one step further.
    fn next(&self, speech: Speech, body: &Value) -> Step {
        if !Speech::has_tools(body) {
            // A title, a summary: nothing that belongs to the script.
            return Step::Say("ok");
        }
        let step = self.script.get(speech.results(body).len()).or(self.script.last());
        step.cloned().unwrap_or(Step::Say("ok"))
    }
}

#[derive(Debug)]
struct Answer {
    status: &'static str,
    kind: &'static str,
    text: String,
}

impl Answer {
    fn json(value: Value) -> Self {
        Self { status: "200 OK", kind: "application/json", text: value.to_string() }
    }
}

fn serve(listener: &TcpListener, desk: &Arc<Desk>) {
    for stream in listener.incoming() {
        if desk.over.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(stream), desk) = (stream, Arc::clone(desk)) else { continue };
        // A caller that leaves in the middle is no fault: agents are killed here.
        std::thread::spawn(move || converse(stream, &desk));
    }
}

/// One request and its answer.
fn converse(stream: TcpStream, desk: &Desk) -> Outcome {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut reader = BufReader::new(stream);
    let (what, body) = read_request(&mut reader)?;
    let is_head = what.starts_with("HEAD ");
    let Answer { status, kind, text } = desk.answer(what, body);
    let mut stream = reader.into_inner();
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )?;
    if !is_head {
        stream.write_all(text.as_bytes())?;
    }
    Ok(stream.flush()?)
}

/// The method with the path, and the body; nothing if it is no JSON.
fn read_request(reader: &mut impl BufRead) -> Outcome<(String, Value)> {
    let first = read_line(reader)?;
    let mut words = first.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
    let what = format!("{method} {path}");
    let (mut length, mut chunked) = (0, false);
    loop {
        let line = read_line(reader)?.to_ascii_lowercase();
        let Some((name, value)) = line.split_once(':') else { break };
        match name {
            "content-length" => length = value.trim().parse()?,
            "transfer-encoding" => chunked = value.trim() == "chunked",
            _ => {}
        }
    }
    let body = if chunked { read_chunks(reader)? } else { read_bytes(reader, length)? };
    Ok((what, serde_json::from_slice(&body).unwrap_or_default()))
}

fn read_line(reader: &mut impl BufRead) -> Outcome<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn read_chunks(reader: &mut impl BufRead) -> Outcome<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = read_line(reader)?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default(), 16)?;
        body.extend(read_bytes(reader, size)?);
        read_line(reader)?;
        if size == 0 {
            return Ok(body);
        }
        if body.len() > MAX_BODY_BYTES {
            return Err("a request without end".into());
        }
    }
}

fn read_bytes(reader: &mut impl Read, count: usize) -> Outcome<Vec<u8>> {
    if count > MAX_BODY_BYTES {
        return Err("a request without end".into());
    }
    let mut bytes = vec![0; count];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_by_length_and_in_chunks() {
        let text = "POST /v1/messages?beta=true HTTP/1.1\r\nContent-Length: 7\r\n\r\n{\"a\":1}rest";
        let (what, body) = read_request(&mut text.as_bytes()).unwrap();
        assert_eq!((what.as_str(), body), ("POST /v1/messages", json!({"a": 1})));
        let text =
            "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":2}\r\n0\r\n\r\n";
        assert_eq!(read_request(&mut text.as_bytes()).unwrap().1, json!({"a": 2}));
        let (what, body) = read_request(&mut "GET / HTTP/1.1\r\n\r\n".as_bytes()).unwrap();
        assert_eq!((what.as_str(), body), ("GET /", Value::Null));
        assert!(read_request(&mut "POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n{}".as_bytes()).is_err());
    }

    #[test]
    fn the_script_goes_on_with_every_result_and_side_talk_is_no_part_of_it() {
        let script =
            vec![Step::Call { tool: "Bash", arguments: json!({"command": "ls"}) }, Step::Say("over")];
        let model = Model::start(script).unwrap();
        let ask = |body: Value| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, model.port)).unwrap();
            let body = body.to_string();
            write!(stream, "POST /v1/messages HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                .unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        };
        let tools = json!([{"name": "Bash"}]);
        assert!(ask(json!({"messages": []})).contains("\"ok\""));
        assert!(ask(json!({"messages": [], "tools": tools})).contains("\"ls\""));
        let result = json!({"role": "user", "content": [{"type": "tool_result", "content": "a\nb", "is_error": true}]});
        assert!(ask(json!({"messages": [result], "tools": tools})).contains("\"over\""));
        assert_eq!(model.results(), [ToolResult { text: "a\nb".to_owned(), failed: true }]);
    }
}
