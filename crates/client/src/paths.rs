//! The directories of a daemon: the rules that turn a few environment variables into two paths. Nothing is created or opened.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_protocol::daemon::{ClientInfo, Surface};
use belay_protocol::vars;

/// The longest path of a Unix socket, in bytes, without the end mark.
pub const SOCKET_PATH_LIMIT: usize = 107;

/// What a task's socket adds to the runtime directory: `/s/`, sixteen characters, `.sock`.
const TASK_SOCKET_BYTES: usize = 24;

/// The two directories of one daemon, and how a client presents itself to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Paths {
    /// The state: journal, output, log.
    pub home: PathBuf,
    /// The sockets.
    pub runtime_dir: PathBuf,
    /// The token of a task or a session of this home, in whose name the client acts. None: the client acts as its process.
    pub token: Option<String>,
    /// The name and version of the program: tasks and sessions that it starts carry them.
    pub client: ClientInfo,
    /// What the program is for its user: receipts and events name it.
    pub surface: Surface,
}

impl std::fmt::Debug for Paths {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { home, runtime_dir, .. } = self;
        f.debug_struct("Paths").field("home", home).field("runtime_dir", runtime_dir).finish_non_exhaustive()
    }
}

/// Why the environment names no directories.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// No variable says where the state is kept.
    #[error("there is no place for Belay's state: neither BELAY_HOME nor XDG_STATE_HOME nor HOME is set")]
    NoHome,

    /// Sockets in the runtime directory would have too long a path.
    #[error(
        "BELAY_RUNTIME_DIR is too long for sockets: {} has {length} bytes, and at most {} fit",
        dir.display(),
        SOCKET_PATH_LIMIT - TASK_SOCKET_BYTES
    )]
    TooLong {
        /// The runtime directory.
        dir: PathBuf,
        /// The length of its path in bytes.
        length: usize,
    },

    /// A relative path, and the current directory is not known.
    #[error("cannot find the current directory, and {variable} is a relative path")]
    Relative {
        /// The variable with the path.
        variable: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl PathsError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NoHome => "set HOME, or set BELAY_HOME to a directory of yours".to_owned(),
            Self::TooLong { .. } => {
                "set BELAY_RUNTIME_DIR to a shorter path such as /tmp/belay-run, or unset it".to_owned()
            }
            Self::Relative { variable, .. } => format!("set {variable} to an absolute path"),
        }
    }
}

/// What the rules ask of the system; tests answer in its place.
struct System<'a> {
    uid: u32,
    is_our_dir: &'a dyn Fn(&Path) -> bool,
}

impl Paths {
    /// `BELAY_HOME`, else `$XDG_STATE_HOME/belay`, else `~/.local/state/belay`; and `BELAY_RUNTIME_DIR`, else `run`
    /// in a home that was named, else `$XDG_RUNTIME_DIR/belay`, else `run` in the home. A derived runtime directory
    /// in which sockets would have too long a path gives way to a short one under `/tmp`.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, PathsError> {
        let uid = rustix::process::getuid().as_raw();
        let is_our_dir = |path: &Path| path.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
        Self::resolve(&get, &System { uid, is_our_dir: &is_our_dir })
    }

    fn resolve(get: &dyn Fn(&str) -> Option<OsString>, system: &System) -> Result<Self, PathsError> {
        let var = |name: &'static str| match get(name) {
            Some(value) if !value.is_empty() => std::path::absolute(value)
                .map(Some)
                .map_err(|source| PathsError::Relative { variable: name, source }),
            _ => Ok(None),
        };
        let named = var(vars::HOME)?;
        let home = match &named {
            Some(home) => home.clone(),
            None => match var("XDG_STATE_HOME")? {
                Some(state) => state.join("belay"),
                None => var("HOME")?.ok_or(PathsError::NoHome)?.join(".local/state/belay"),
            },
        };
        let runtime_dir = match var(vars::RUNTIME_DIR)? {
            Some(dir) if too_long(&dir) => {
                return Err(PathsError::TooLong { length: dir.as_os_str().len(), dir });
            }
            Some(dir) => dir,
            None => {
                let xdg = if named.is_some() { None } else { var("XDG_RUNTIME_DIR")? };
                let derived = match xdg.filter(|dir| (system.is_our_dir)(dir)) {
                    Some(dir) => dir.join("belay"),
                    None => home.join("run"),
                };
                if too_long(&derived) { short_dir(&home, system.uid) } else { derived }
            }
        };
        // A token is good for the daemon that gave it and for no other.
        let given = [vars::TOKEN_HOME, vars::TASK_HOME].into_iter().find_map(get);
        let token = get(vars::TOKEN).and_then(|token| token.into_string().ok());
        let same = |given: OsString| {
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            real(Path::new(&given)) == real(&home)
        };
        // A token without a home is presented: an error is better than acting in another name.
        let token = token.filter(|token| !token.is_empty() && given.is_none_or(same));
        Ok(Self { token, ..Self::new(home, runtime_dir) })
    }

    /// These directories, without a token.
    pub fn new(home: PathBuf, runtime_dir: PathBuf) -> Self {
        let client = ClientInfo::new("belay-client", env!("CARGO_PKG_VERSION"));
        Self { home, runtime_dir, token: None, client, surface: Surface::Api }
    }

    /// The same for a client that presents itself as this program.
    pub fn presenting(self, client: ClientInfo, surface: Surface) -> Self {
        Self { client, surface, ..self }
    }

    /// The socket on which the daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir.join("daemon.sock")
    }

    /// The settings file, which need not exist.
    pub fn config_file(&self) -> PathBuf {
        self.home.join(vars::CONFIG_FILE)
    }
}

fn too_long(dir: &Path) -> bool {
    dir.as_os_str().len() + TASK_SOCKET_BYTES > SOCKET_PATH_LIMIT
}

/// A short directory that belongs to this home alone.
fn short_dir(home: &Path, uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/belay-{uid}/{:016x}", fnv1a(home.as_os_str().as_bytes())))
}

/// FNV-1a with 64 bits, written out because the result names a directory: it must be the same for ever.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn paths(vars: &[(&str, &str)], ours: &[&str]) -> Result<Paths, PathsError> {
        let get =
            |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        let is_our_dir = |path: &Path| ours.iter().any(|dir| Path::new(dir) == path);
        Paths::resolve(&get, &System { uid: 1000, is_our_dir: &is_our_dir })
    }

    fn pair(home: &str, runtime_dir: &str) -> Paths {
        Paths::new(home.into(), runtime_dir.into())
    }

    #[test]
    fn a_token_is_shown_to_the_home_that_gave_it_alone() {
        let with = |home: &str, given: &[(&str, &str)]| {
            paths(&[&[("BELAY_HOME", home), ("BELAY_TOKEN", "sh-1.x")], given].concat(), &[]).unwrap().token
        };
        assert_eq!(with("/h", &[("BELAY_TASK_HOME", "/h")]).as_deref(), Some("sh-1.x"));
        assert_eq!(
            with("/h", &[("BELAY_TOKEN_HOME", "/h"), ("BELAY_TASK_HOME", "/x")]).as_deref(),
            Some("sh-1.x")
        );
        assert_eq!(with("/other", &[("BELAY_TASK_HOME", "/h")]), None);
        assert_eq!(with("/h", &[]).as_deref(), Some("sh-1.x"), "better refused than forgotten");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn without_any_setting_the_home_decides() {
        assert_eq!(
            paths(&[("HOME", "/h")], &[]).unwrap(),
            pair("/h/.local/state/belay", "/h/.local/state/belay/run")
        );
        assert_eq!(
            paths(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")], &[]).unwrap(),
            pair("/s/belay", "/s/belay/run")
        );
    }

    #[test]
    fn the_runtime_dir_of_the_desktop_is_used_when_it_is_ours() {
        let vars = [("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(
            paths(&vars, &["/run/user/1000"]).unwrap(),
            pair("/h/.local/state/belay", "/run/user/1000/belay")
        );
        assert_eq!(paths(&vars, &[]).unwrap(), pair("/h/.local/state/belay", "/h/.local/state/belay/run"));
    }

    #[test]
    fn a_named_home_is_a_world_of_its_own() {
        let vars = [("BELAY_HOME", "/w"), ("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(paths(&vars, &["/run/user/1000"]).unwrap(), pair("/w", "/w/run"));
        let vars = [("BELAY_HOME", "/w"), ("BELAY_RUNTIME_DIR", "/r")];
        assert_eq!(paths(&vars, &[]).unwrap(), pair("/w", "/r"));
    }

    #[test]
    fn empty_values_count_as_unset_and_relative_ones_become_absolute() {
        assert!(matches!(paths(&[("BELAY_HOME", ""), ("HOME", "")], &[]), Err(PathsError::NoHome)));
        let here = std::env::current_dir().unwrap();
        let found = paths(&[("BELAY_HOME", "w"), ("BELAY_RUNTIME_DIR", "/r")], &[]).unwrap();
        assert_eq!(found.home, here.join("w"));
    }

    #[test]
    fn a_runtime_dir_that_was_asked_for_and_is_too_long_is_an_error_that_says_so() {
        let long = format!("/{}", "d".repeat(83));
        let error = paths(&[("BELAY_HOME", "/w"), ("BELAY_RUNTIME_DIR", &long)], &[]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("BELAY_RUNTIME_DIR") && text.contains("84 bytes") && text.contains("83 fit"),
            "{text}"
        );
        let fits = format!("/{}", "d".repeat(82));
        assert!(paths(&[("BELAY_HOME", "/w"), ("BELAY_RUNTIME_DIR", &fits)], &[]).is_ok());
    }

    #[test]
    fn a_derived_runtime_dir_that_is_too_long_gives_way() {
        let home = format!("/{}", "d".repeat(90));
        let found = paths(&[("BELAY_HOME", &home)], &[]).unwrap();
        assert_eq!(found.runtime_dir, Path::new(&format!("/tmp/belay-1000/{:016x}", fnv1a(home.as_bytes()))));
    }

    proptest! {
        #[test]
        fn every_socket_fits(home in "/[a-z/]{0,150}", runtime in proptest::option::of("/[a-z/]{0,120}")) {
            let mut vars = vec![("BELAY_HOME", home.as_str())];
            if let Some(dir) = &runtime { vars.push(("BELAY_RUNTIME_DIR", dir)); }
            if let Ok(paths) = paths(&vars, &[]) {
                prop_assert!(paths.home.is_absolute() && paths.runtime_dir.is_absolute());
                prop_assert!(paths.socket().as_os_str().len() <= SOCKET_PATH_LIMIT);
                let task = paths.runtime_dir.join("s").join(format!("{}.sock", "x".repeat(16)));
                prop_assert!(task.as_os_str().len() <= SOCKET_PATH_LIMIT);
            } else {
                prop_assert!(runtime.is_some());
            }
        }
    }
}
