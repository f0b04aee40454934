//! What the tests need that not everybody may: asked before anything is built, and told in one sentence.

use crate::run::{Outcome, command, succeeds_quietly};

/// What this user may do here.
#[derive(Clone, Copy, Debug)]
struct Rights {
    root: bool,
    /// Become an ordinary user.
    switch: bool,
    /// Mount a small disk, in a place of its own.
    mount: bool,
}

pub(crate) fn check() -> Outcome {
    let root = rustix::process::getuid().is_root();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "true"];
    let disk = ["--mount", "sh", "-c", "mount -t tmpfs none /tmp"];
    let rights = Rights {
        root,
        switch: root && succeeds_quietly(&mut command("setpriv", &nobody)),
        mount: root && succeeds_quietly(&mut command("unshare", &disk)),
    };
    missing(rights).map_or(Ok(()), |why| Err(why.into()))
}

/// Why the tests cannot be run here, and what to do.
fn missing(rights: Rights) -> Option<String> {
    let why = match rights {
        Rights { root: false, .. } => {
            "the tests need root: some act as another user, mount a small disk, or make cgroups"
        }
        Rights { switch: false, .. } => "this root may not become another user, as some tests do (setpriv)",
        Rights { mount: false, .. } => "this root may not mount a disk, as some tests do (tmpfs)",
        Rights { root: true, switch: true, mount: true } => return None,
    };
    Some(format!(
        "{why}\n  what to do: run it as root of a machine or of a privileged container; what needs no rights is tested by\n  \
         cargo test --workspace --exclude belay"
    ))
}

#[cfg(test)]
mod tests {
    use super::{Rights, missing};

    #[test]
    fn what_is_missing_is_said_in_one_sentence() {
        let all = Rights { root: true, switch: true, mount: true };
        let first = |rights| missing(rights).map(|text| text.lines().next().unwrap_or_default().to_owned());
        assert_eq!(first(all), None);
        for (rights, expected) in [
            (
                Rights { root: false, switch: false, mount: false },
                "the tests need root: some act as another user, mount a small disk, or make cgroups",
            ),
            (
                Rights { switch: false, ..all },
                "this root may not become another user, as some tests do (setpriv)",
            ),
            (Rights { mount: false, ..all }, "this root may not mount a disk, as some tests do (tmpfs)"),
        ] {
            assert_eq!(first(rights).as_deref(), Some(expected));
        }
    }
}
