//! Whether this machine lets us make cgroups, and where: looked up in the mount table, and tried out. It leaves behind
//! nothing but the base directory, if that turned out usable.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::limits::{self, Available};
use crate::process::{monotonic_us, own_pid};
use crate::spawn::{Session, SpawnSpec, Stage, spawn};

/// Which cgroups are mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Version 2 only.
    PureV2,
    /// Version 2 beside version 1.
    Hybrid,
    /// Version 1 only, which cannot kill or tell reliably.
    V1Only,
    /// None.
    None,
}

/// What there is of cgroups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Which are mounted.
    pub layout: Layout,
    /// Where version 2 is mounted.
    pub mount: Option<PathBuf>,
    /// The directory of the caller's own cgroup.
    pub own: Option<PathBuf>,
    /// The directory below which the caller can make cgroups and start processes in them; tried out.
    pub usable: Option<PathBuf>,
    /// Why it is usable or not, in one sentence for people.
    pub why: String,
    /// The controllers to be had there.
    pub controllers: Vec<String>,
    /// Which limits the cgroups of tasks can have.
    pub limits: Available,
}

/// Looks for a place for cgroups, and makes `name` in it.
pub fn probe(name: &str) -> Probe {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let (layout, v2_mounts) = read_mounts(&mounts);
    let mut probe = Probe {
        layout,
        mount: None,
        own: None,
        usable: None,
        why: String::new(),
        controllers: Vec::new(),
        limits: Available::default(),
    };
    let Some(first) = v2_mounts.first() else {
        probe.why = match layout {
            Layout::V1Only => "only cgroup v1 is mounted, which cannot hold a task".to_owned(),
            _ => "no cgroup file system is mounted".to_owned(),
        };
        return probe;
    };
    let located = v2_mounts.iter().find_map(|mount| Some((mount, locate(mount, &cgroups)?)));
    let Some((mount, own)) = located else {
        probe.mount = Some(first.point.clone());
        probe.why = format!("cgroup v2 at {} does not show our own cgroup", first.point.display());
        return probe;
    };
    probe.mount = Some(mount.point.clone());
    probe.own = Some(own.clone());
    let base = own.join(name);
    match try_out(&base) {
        Ok(()) => {
            probe.limits = limits::enable(&own, &base);
            probe.controllers = controllers(&base);
            probe.why = format!("tasks can have their own cgroups below {}", base.display());
            probe.usable = Some(base);
        }
        Err(why) => probe.why = format!("cgroup v2 at {}, but {why}", mount.point.display()),
    }
    probe
}

/// Where cgroup v2 is mounted, if it is.
pub fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    read_mounts(&mounts).1.into_iter().next().map(|mount| mount.point)
}

fn controllers(cgroup: &Path) -> Vec<String> {
    let text = fs::read_to_string(cgroup.join("cgroup.controllers")).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Makes the base and, in it, a cgroup and a process; says in words what did not work.
fn try_out(base: &Path) -> Result<(), String> {
    let made = match rustix::fs::mkdir(base, rustix::fs::Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(rustix::io::Errno::EXIST) => false,
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            let parent = base.parent().unwrap_or(base).display();
            return Err(format!("{parent} is not writable for uid {}", rustix::process::geteuid().as_raw()));
        }
        Err(rustix::io::Errno::ROFS) => return Err("it is mounted read-only".to_owned()),
        Err(error) => return Err(format!("{} cannot be made: {}", base.display(), io::Error::from(error))),
    };
    let name = format!("probe-{}-{}", own_pid(), monotonic_us());
    let tried = Cgroup::create(base, &name)
        .map_err(|error| format!("no cgroup can be made in {}: {error}", base.display()))
        .and_then(|cgroup| {
            let tried = try_clone(&cgroup);
            let removed = cgroup.remove().map_err(|error| format!("a cgroup cannot be removed: {error}"));
            tried.and(removed)
        });
    if tried.is_err() && made {
        let _ = rustix::fs::rmdir(base);
    }
    tried
}

/// Whether a process can be born in it, and the whole of it be killed. The process tries to execute `/dev/null`, which
/// exists everywhere and never is a program: it fails at that step only if it came to be in the cgroup.
fn try_clone(cgroup: &Cgroup) -> Result<(), String> {
    if !cgroup.path().join("cgroup.kill").exists() {
        return Err("this kernel has no cgroup.kill (Linux 5.14)".to_owned());
    }
    let null = crate::fds::null().map_err(|error| format!("/dev/null cannot be opened: {error}"))?;
    let argv = [c"/dev/null".to_owned()];
    let spec = SpawnSpec {
        argv: &argv,
        envp: &[],
        cwd: None,
        umask: None,
        rlimits: &[],
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        cgroup: Some(cgroup.dir()),
        session: Session::NewGroup,
    };
    match spawn(&spec) {
        Err(error) if error.stage == Stage::Program => {}
        Err(error) => return Err(format!("no process can be started in a cgroup of ours: {error}")),
        Ok(_) => return Err("/dev/null is a program here".to_owned()),
    }
    cgroup.kill().map_err(|error| format!("a cgroup of ours cannot be killed: {error}"))
}

/// One cgroup v2 mount: which part of the hierarchy, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    root: PathBuf,
    point: PathBuf,
}

fn read_mounts(mountinfo: &[u8]) -> (Layout, Vec<Mount>) {
    let mut v1 = false;
    let mut v2 = Vec::new();
    for line in mountinfo.split(|&byte| byte == b'\n') {
        match parse_mount(line) {
            Some((b"cgroup", _)) => v1 = true,
            Some((b"cgroup2", mount)) => v2.push(mount),
            _ => {}
        }
    }
    let layout = match (v1, v2.is_empty()) {
        (false, false) => Layout::PureV2,
        (true, false) => Layout::Hybrid,
        (true, true) => Layout::V1Only,
        (false, true) => Layout::None,
    };
    (layout, v2)
}

/// One line of mountinfo: `id parent device root point options [tags…] - type source options`.
fn parse_mount(line: &[u8]) -> Option<(&[u8], Mount)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let root = unescape(fields.nth(3)?);
    let point = unescape(fields.next()?);
    fields.find(|field| *field == b"-")?;
    Some((fields.next()?, Mount { root, point }))
}

/// The mount table writes space, tab, newline and backslash as `\040` and so on.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\').then(|| octal(after)).flatten();
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits.get(..3)?).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| u8::from_str_radix(text, 8).ok()).flatten()
}

/// The directory of our own cgroup under this mount, if it is in the mounted part of the hierarchy.
fn locate(mount: &Mount, cgroups: &str) -> Option<PathBuf> {
    let own = Path::new(cgroups.lines().find_map(|line| line.strip_prefix("0::"))?);
    // Beyond the root of our cgroup namespace the kernel shows `/..`, which leads nowhere in the mount.
    if own.components().any(|part| part == std::path::Component::ParentDir) {
        return None;
    }
    let below = own.strip_prefix(&mount.root).ok()?;
    Some(if below.as_os_str().is_empty() { mount.point.clone() } else { mount.point.join(below) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID: &[u8] = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:1 master:2 - cgroup2 cgroup2 rw\n";

    #[test]
    fn layouts_are_told_apart() {
        let (layout, mounts) = read_mounts(HYBRID);
        assert_eq!(layout, Layout::Hybrid);
        assert_eq!(mounts, [Mount { root: "/".into(), point: "/sys/fs/cgroup/uni fied".into() }]);
        assert_eq!(read_mounts(b"").0, Layout::None);
        assert_eq!(read_mounts(b"1 2 0:1 / /c rw - cgroup cgroup rw\n").0, Layout::V1Only);
        assert_eq!(read_mounts(b"1 2 0:1 / /c rw - cgroup2 cgroup2 rw\n").0, Layout::PureV2);
    }

    #[test]
    fn the_root_of_the_mount_is_respected() {
        let mount = |root: &str| Mount { root: root.into(), point: "/c".into() };
        assert_eq!(locate(&mount("/"), "3:cpu:/x\n0::/a/b\n"), Some("/c/a/b".into()));
        assert_eq!(locate(&mount("/"), "0::/\n"), Some("/c".into()));
        assert_eq!(locate(&mount("/a"), "0::/a/b\n"), Some("/c/b".into()));
        assert_eq!(locate(&mount("/ab"), "0::/a/b\n"), None);
        assert_eq!(locate(&mount("/"), "0::/../x\n"), None);
        assert_eq!(locate(&mount("/"), "3:cpu:/x\n"), None);
    }

    proptest! {
        #[test]
        fn no_table_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read_mounts(&bytes);
            let _ = locate(&Mount { root: "/".into(), point: "/c".into() }, &String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn escapes_are_undone(path in "[a-z /\\\\\t\n]{1,40}") {
            let escaped: String = path
                .chars()
                .map(|letter| match letter {
                    ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", letter as u32),
                    letter => letter.to_string(),
                })
                .collect();
            prop_assert_eq!(unescape(escaped.as_bytes()), PathBuf::from(&path));
            let line = format!("1 2 0:1 / {escaped} rw,x a:1 - cgroup2 none rw");
            let (kind, mount) = parse_mount(line.as_bytes()).unwrap();
            prop_assert_eq!(kind, &b"cgroup2"[..]);
            prop_assert_eq!(mount.point, PathBuf::from(&path));
        }
    }
}
