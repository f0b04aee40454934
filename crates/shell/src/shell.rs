//! Which shell will run a line, and which grammar that shell reads. It looks at names only, never at files.

use std::path::{Path, PathBuf};

/// Shells that read the grammar of bash, also when they are called with `--posix` or as `sh`.
const BASH: &[&str] = &["bash", "rbash"];

/// Shells that read the POSIX grammar and no more, as far as `&` goes.
const POSIX: &[&str] = &["dash", "ash", "busybox"];

/// Programs that take a line with `-c` and read something else in it.
const FOREIGN: &[&str] = &[
    "fish",
    "csh",
    "tcsh",
    "nu",
    "pwsh",
    "powershell",
    "elvish",
    "xonsh",
    "ion",
    "rc",
    "es",
    "cmd",
    "python",
    "python3",
    "perl",
    "ruby",
    "node",
];

/// Shells that are known to run nothing when they are called with `-n -c LINE`.
const READ_ONLY_ON_REQUEST: &[&str] =
    &["sh", "bash", "rbash", "dash", "ash", "busybox", "ksh", "mksh", "oksh", "yash"];

/// The grammar of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    Bash,
    Posix,
    /// A shell not known by its name, or `sh` that may be any of them: both grammars must agree.
    Unknown,
    /// A shell of another family, for which neither grammar means anything.
    Foreign,
}

/// A grammar that lines can be read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Grammar {
    Bash,
    Posix,
}

impl Dialect {
    /// The grammars by which a line must be read, and which must agree.
    pub(crate) fn grammars(self) -> &'static [Grammar] {
        match self {
            Self::Bash => &[Grammar::Bash],
            Self::Posix => &[Grammar::Posix],
            Self::Unknown => &[Grammar::Bash, Grammar::Posix],
            Self::Foreign => &[],
        }
    }
}

/// The shell that will run a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shell {
    program: PathBuf,
    target: Option<PathBuf>,
}

impl Shell {
    /// A shell by its path or name: `/bin/bash`, `dash`, `zsh`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), target: None }
    }

    /// What the program really is, for instance where the link `/bin/sh` leads. It decides the dialect.
    pub fn resolved(mut self, target: impl Into<PathBuf>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// The program as the caller named it.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// What stands before a line when the shell is only to read it. None of a shell that might run it instead.
    pub fn arguments_to_read(&self) -> Option<&'static [&'static str]> {
        match self.name().as_str() {
            // Without `-f` it would run a file of the user's first.
            "zsh" => Some(&["-f", "-n", "-c"]),
            name if READ_ONLY_ON_REQUEST.contains(&name) => Some(&["-n", "-c"]),
            _ => None,
        }
    }

    /// The dialect is that of the binary that will run the line, not that of the name it is called by.
    pub fn dialect(&self) -> Dialect {
        let name = self.name();
        let is_in = |list: &[&str]| list.contains(&name.as_str());
        if is_in(BASH) {
            Dialect::Bash
        } else if is_in(POSIX) {
            Dialect::Posix
        } else if is_in(FOREIGN) {
            Dialect::Foreign
        } else {
            Dialect::Unknown
        }
    }

    fn name(&self) -> String {
        base_name(self.target.as_ref().unwrap_or(&self.program))
    }
}

/// The last part of the path, without the dash of a login shell, a version (`bash-5.2`) and `.exe`.
fn base_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.trim_start_matches('-');
    let name = name.strip_suffix(".exe").unwrap_or(name);
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    plain.strip_suffix('-').unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(program: &str) -> Dialect {
        Shell::new(program).dialect()
    }

    #[test]
    fn names_tell_the_dialect() {
        for bash in ["bash", "/bin/bash", "/usr/local/bin/bash-5.2", "-bash", "rbash", "bash.exe"] {
            assert_eq!(dialect(bash), Dialect::Bash, "{bash}");
        }
        for posix in ["dash", "/bin/ash", "/bin/busybox", "dash-0.5.12"] {
            assert_eq!(dialect(posix), Dialect::Posix, "{posix}");
        }
        for unknown in ["sh", "/bin/sh", "zsh", "/opt/ksh93", "", "/", "mysh"] {
            assert_eq!(dialect(unknown), Dialect::Unknown, "{unknown}");
        }
        for foreign in ["fish", "/usr/bin/nu", "tcsh", "pwsh", "PowerShell.exe"] {
            assert_eq!(dialect(foreign), Dialect::Foreign, "{foreign}");
        }
    }

    #[test]
    fn only_shells_that_are_known_to_only_read_are_asked() {
        let asked = |program: &str| Shell::new(program).arguments_to_read().map(<[_]>::to_vec);
        assert_eq!(asked("/bin/bash"), Some(vec!["-n", "-c"]));
        assert_eq!(asked("zsh-5.9"), Some(vec!["-f", "-n", "-c"]));
        assert_eq!(Shell::new("/bin/sh").resolved("/opt/mine").arguments_to_read(), None);
        for other in ["fish", "mysh", "python3", "belay", ""] {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn what_it_really_is_counts_more_than_its_name() {
        assert_eq!(Shell::new("/bin/sh").resolved("/usr/bin/dash").dialect(), Dialect::Posix);
        assert_eq!(Shell::new("/bin/sh").resolved("bash").dialect(), Dialect::Bash);
        assert_eq!(Shell::new("/bin/sh").resolved("bash").program(), Path::new("/bin/sh"));
    }
}
