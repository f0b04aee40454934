//! A connection without a client behind it: any bytes go out, and what comes back is read line by line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use belay_testkit::{LONG, World};
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Raw {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Raw {
    /// Connects and says nothing. The daemon must be there.
    #[track_caller]
    pub(crate) fn silent(world: &World) -> Self {
        let stream = UnixStream::connect(world.paths().socket()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    /// Connects and says hello.
    #[track_caller]
    pub(crate) fn greeted(world: &World) -> Self {
        world.client();
        let mut raw = Self::silent(world);
        let answer =
            raw.call("daemon/hello", &json!({ "client": { "name": "raw", "version": "0" }, "protocol": 1 }));
        assert_eq!(answer["result"]["protocol"], 1, "{answer}");
        raw
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        let line = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        self.say(line.as_bytes())
    }

    /// Sends one line and reads the next one.
    #[track_caller]
    pub(crate) fn say(&mut self, line: &[u8]) -> Value {
        self.send(line);
        self.send(b"\n");
        self.hear()
    }

    #[track_caller]
    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Reads until the daemon closes the connection, which it must.
    #[track_caller]
    pub(crate) fn last_words(mut self) -> String {
        let mut words = Vec::new();
        match self.reader.read_to_end(&mut words) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the daemon does not close the connection: {error}"),
        }
        String::from_utf8(words).unwrap()
    }
}
