//! A real terminal for tests: a tmux of its own, whose one window is typed into, looked at and resized as a person would.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command;
use crate::wait::{LONG, wait_until};
use crate::world::World;

/// What the shell in the window says when it is ready.
pub const PROMPT: &str = "READY>";

/// The window is all there is, and a key is sent when it is pressed.
const SETTINGS: &str = "set -g status off\nset -s escape-time 0\nset -g default-terminal screen-256color\n";

/// A terminal with a shell at it. Dropped, it goes away as a window does that is closed.
#[derive(Debug)]
pub struct Tmux<'a> {
    world: &'a World,
    socket: PathBuf,
}

impl<'a> Tmux<'a> {
    /// A terminal of this size, with `belay` as `$BELAY` in its shell.
    #[track_caller]
    pub fn new(world: &'a World, cols: u16, rows: u16) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tmux{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let settings = world.dir().join(format!("{name}.conf"));
        std::fs::write(&settings, SETTINGS).unwrap();
        // A variable would not do: a shell of root's has its own prompt.
        let prompt = world.dir().join("prompt");
        std::fs::write(&prompt, format!("PS1='{PROMPT} '\n")).unwrap();
        let tmux = Self { world, socket: world.dir().join(name) };
        let mut command = tmux.command();
        command.arg("-u").arg("-f").arg(settings).args(["new-session", "-d"]);
        command.args(["-x", &cols.to_string(), "-y", &rows.to_string(), "sh"]);
        command.env("BELAY", world.program()).env("ENV", prompt);
        command.env_remove("TMUX").env_remove("LINES").env_remove("COLUMNS");
        command::finish(command).ok();
        tmux.wait_for("a shell at the terminal", |screen| screen.starts_with(PROMPT));
        tmux
    }

    fn command(&self) -> std::process::Command {
        let mut command = self.world.command("tmux");
        command.arg("-S").arg(&self.socket);
        command
    }

    #[track_caller]
    fn tell(&self, words: &[&str]) -> String {
        let mut command = self.command();
        command.args(words);
        command::finish(command).ok().line()
    }

    /// Types it, letter by letter.
    #[track_caller]
    pub fn say(&self, text: &str) {
        self.tell(&["send-keys", "-l", "--", text]);
    }

    /// Presses keys by tmux's names for them: `Enter`, `C-c`, `Escape`.
    #[track_caller]
    pub fn press(&self, keys: &[&str]) {
        let mut words = vec!["send-keys", "--"];
        words.extend(keys);
        self.tell(&words);
    }

    /// Types a line and Enter.
    #[track_caller]
    pub fn line(&self, text: &str) {
        self.say(text);
        self.press(&["Enter"]);
    }

    /// What is on the screen now, without what is empty at its end.
    #[track_caller]
    pub fn screen(&self) -> String {
        self.tell(&["capture-pane", "-p"]).trim_end().to_owned()
    }

    /// Waits until the screen is right.
    #[track_caller]
    pub fn wait_for(&self, what: &str, right: impl Fn(&str) -> bool) -> String {
        wait_until(what, LONG, || {
            let screen = self.screen();
            if right(&screen) { Ok(screen) } else { Err(format!("this screen:\n{screen}\n")) }
        })
    }

    /// Waits until this stands somewhere on the screen.
    #[track_caller]
    pub fn wait_for_text(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.contains(text))
    }

    #[track_caller]
    pub fn resize(&self, cols: u16, rows: u16) {
        self.tell(&["resize-window", "-x", &cols.to_string(), "-y", &rows.to_string()]);
    }

    /// What programs have made of the terminal: other screen, cursor shown, mouse, keys of the cursor.
    #[track_caller]
    pub fn modes(&self) -> Modes {
        let format = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_cursor_flag}";
        let told = self.tell(&["display-message", "-p", format]);
        let flags: Vec<bool> = told.split(' ').map(|flag| flag == "1").collect();
        let [alternate, cursor, mouse, cursor_keys] = flags[..] else { panic!("tmux says {told:?}") };
        Modes { alternate, cursor, mouse, cursor_keys }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "so many flags has a terminal")]
pub struct Modes {
    pub alternate: bool,
    pub cursor: bool,
    pub mouse: bool,
    pub cursor_keys: bool,
}

impl Modes {
    /// A terminal that no program has changed.
    pub const PLAIN: Self = Self { alternate: false, cursor: true, mouse: false, cursor_keys: false };
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let mut command = self.command();
        command.arg("kill-server");
        command::finish(command);
    }
}
