//! A toy shell for simulated guests. It knows the files of its guest and nothing of the machine: nothing is ever run.
//!
//! It knows `echo`, `printf`, `cat`, `ls`, `mkdir`, `pwd`, `true`, `false`, `sleep` and `exit`; quotes; `;` and `&&` between
//! commands; and `> FILE`, `>> FILE` and `>&2` behind one. Whatever else a line has is an error, as a typing error would be.

use std::time::Duration;

use super::files::{Files, MAX_BYTES, Trouble};

/// Bytes that a line may say.
const MAX_OUTPUT: usize = 8 << 20;
/// What a shell says of a line that it cannot read, and of a command that it does not know.
const UNREADABLE: i64 = 2;
const UNKNOWN: i64 = 127;

/// One command of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    words: Vec<String>,
    output: Output,
    /// Run only if the one before it succeeded.
    if_ok: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Output {
    #[default]
    Stdout,
    Stderr,
    File(String),
    Append(String),
}

impl Output {
    /// Bytes that it takes.
    fn most(&self) -> usize {
        match self {
            Self::Stdout | Self::Stderr => MAX_OUTPUT,
            Self::File(_) | Self::Append(_) => MAX_BYTES,
        }
    }
}

/// What a line has said so far.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) exit_code: i64,
    pub(super) ended: bool,
}

impl Command {
    /// The commands of a line.
    ///
    /// # Errors
    /// With the sign that this shell does not know.
    pub(super) fn parse(line: &str) -> Result<Vec<Self>, String> {
        let mut commands = vec![Self::default()];
        let mut signs = line.chars().peekable();
        while let Some(sign) = signs.next() {
            let command = commands.last_mut().expect("there is always one");
            match sign {
                ' ' | '\t' => {}
                ';' | '\n' => commands.push(Self::default()),
                '&' if signs.next_if_eq(&'&').is_some() => commands.push(Self {
                    if_ok: true,
                    ..Self::default()
                }),
                '>' if signs.next_if_eq(&'&').is_some() => match signs.next() {
                    Some('2') => command.output = Output::Stderr,
                    other => return Err(format!(">&{}", other.unwrap_or(' '))),
                },
                '>' => {
                    let append = signs.next_if_eq(&'>').is_some();
                    while signs.next_if_eq(&' ').is_some() {}
                    let file = word(None, &mut signs)?;
                    command.output = match append {
                        true => Output::Append(file),
                        false => Output::File(file),
                    };
                }
                sign => command.words.push(word(Some(sign), &mut signs)?),
            }
        }
        commands.retain(|command| !command.words.is_empty());
        Ok(commands)
    }

    /// How long it takes: only `sleep` takes any time.
    pub(super) fn takes(&self) -> Duration {
        let seconds = match self.words.as_slice() {
            [sleep, seconds] if sleep == "sleep" => seconds.parse().unwrap_or(0.0),
            _ => 0.0,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    pub(super) fn of_words(words: &[String]) -> Self {
        Self {
            words: words.to_vec(),
            ..Self::default()
        }
    }
}

/// A word with its quotes taken away.
fn word(
    first: Option<char>,
    signs: &mut std::iter::Peekable<std::str::Chars<'_>>,
) -> Result<String, String> {
    let mut word = String::new();
    let mut next = first.or_else(|| signs.next());
    while let Some(sign) = next {
        match sign {
            '\'' | '"' => loop {
                match signs.next() {
                    Some(end) if end == sign => break,
                    Some('\\') if sign == '"' => word.extend(signs.next()),
                    Some(inner) => word.push(inner),
                    None => return Err("a quote without end".to_owned()),
                }
            },
            '\\' => word.extend(signs.next()),
            '|' | '<' | '$' | '`' | '(' | ')' | '*' | '?' | '&' | '#' => {
                return Err(sign.to_string());
            }
            sign => word.push(sign),
        }
        let goes_on = |sign: &char| !matches!(sign, ' ' | '\t' | '\n' | ';' | '>' | '&');
        next = signs.next_if(goes_on);
    }
    Ok(word)
}

impl Run {
    /// The answer to a line that cannot be read.
    pub(super) fn unreadable(sign: &str) -> Self {
        Self {
            stderr: format!("sh: not in this shell: {sign}\n").into_bytes(),
            exit_code: UNREADABLE,
            ended: true,
            ..Self::default()
        }
    }

    /// Whether the command is to be run.
    pub(super) fn reaches(&self, command: &Command) -> bool {
        !self.ended && (!command.if_ok || self.exit_code == 0)
    }

    /// Whether it has said more than a line may.
    pub(super) fn says_too_much(&self) -> bool {
        self.stdout.len() + self.stderr.len() > MAX_OUTPUT
    }

    /// Runs a command that has taken its time.
    pub(super) fn step(&mut self, command: &Command, files: &mut Files, now: i64) {
        let said = self.say(command, files);
        let said = said.and_then(|said| match &command.output {
            Output::Stdout => {
                self.stdout.extend(said);
                Ok(())
            }
            Output::Stderr => {
                self.stderr.extend(said);
                Ok(())
            }
            Output::File(path) => files.write(path, said.into(), now),
            Output::Append(path) => {
                let mut whole = files.read(path).unwrap_or_default().to_vec();
                whole.extend(said);
                files.write(path, whole.into(), now)
            }
        });
        if let Err(trouble) = said {
            let text = format!("{}: {}\n", command.words[0], trouble.message);
            self.stderr.extend(text.into_bytes());
            self.exit_code = 1;
        }
    }

    /// What a command writes to its output.
    fn say(&mut self, command: &Command, files: &mut Files) -> Result<Vec<u8>, Trouble> {
        let (name, arguments) = command.words.split_first().expect("a command has a name");
        let first = arguments.first().map_or("", String::as_str);
        self.exit_code = 0;
        let mut said = Vec::new();
        match name.as_str() {
            "echo" => said = format!("{}\n", arguments.join(" ")).into_bytes(),
            "printf" => said = first.replace("\\n", "\n").into_bytes(),
            "cat" => {
                for path in arguments {
                    said.extend(files.read(path)?);
                    // More is refused in any case: a line with many names must not fill the memory.
                    if said.len() > command.output.most() {
                        break;
                    }
                }
            }
            "ls" => {
                for (name, _) in files.list(if first.is_empty() { "/" } else { first })? {
                    said.extend(format!("{name}\n").into_bytes());
                }
            }
            "mkdir" => match arguments {
                [parents, path] if parents == "-p" => files.make_directory(path, true)?,
                _ => files.make_directory(first, false)?,
            },
            "pwd" => said = b"/\n".to_vec(),
            "true" | "sleep" => {}
            "false" => self.exit_code = 1,
            "exit" => {
                self.exit_code = first.parse().unwrap_or(0);
                self.ended = true;
            }
            other => {
                self.stderr
                    .extend(format!("sh: {other}: not found\n").into_bytes());
                self.exit_code = UNKNOWN;
            }
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: (i64, &str, &str)) {
        let mut files = Files::default();
        let run = match Command::parse(line) {
            Ok(commands) => commands.iter().fold(Run::default(), |mut run, command| {
                if run.reaches(command) {
                    run.step(command, &mut files, 0);
                }
                run
            }),
            Err(sign) => Run::unreadable(&sign),
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let found = (run.exit_code, text(&run.stdout), text(&run.stderr));
        let (code, stdout, stderr) = expected;
        assert_eq!(
            found,
            (code, stdout.to_owned(), stderr.to_owned()),
            "{line}"
        );
    }

    #[test]
    fn a_line_is_run_as_a_shell_would() {
        check("echo a  'b  c' \"d\\\"\"", (0, "a b  c d\"\n", ""));
        check(
            "echo out; echo err >&2; exit 3; echo no",
            (3, "out\n", "err\n"),
        );
        check("printf 'a\\nb' > /a && cat /a", (0, "a\nb", ""));
        check(
            "echo a > x; echo b >> x; cat x; ls",
            (0, "a\nb\ntmp\nx\n", ""),
        );
        check("false && echo no; pwd", (0, "/\n", ""));
        check("mkdir -p a/b; echo c >a/b/c && ls a/b", (0, "c\n", ""));
        check("", (0, "", ""));
        check("cat /a", (1, "", "cat: /a: No such file or directory\n"));
        check("python3 -c 1", (127, "", "sh: python3: not found\n"));
        check("ls | cat", (2, "", "sh: not in this shell: |\n"));
        check(
            "echo 'a",
            (2, "", "sh: not in this shell: a quote without end\n"),
        );
    }

    #[test]
    fn what_is_too_much_is_not_collected() {
        let mut files = Files::default();
        files.write("/f", vec![b'a'; 3 << 20].into(), 0).unwrap();
        let say = |line: &str, files: &mut Files| {
            let mut run = Run::default();
            run.step(&Command::parse(line).unwrap()[0], files, 0);
            run
        };
        let many = "cat".to_owned() + &" /f".repeat(1_000);
        let run = say(&many, &mut files);
        assert!(run.says_too_much());
        assert_eq!(run.stdout.len(), 9 << 20);
        let run = say(&(many + " > /g"), &mut files);
        assert_eq!((run.exit_code, files.read("/g").is_err()), (1, true));
        assert_eq!(say("cat /f /f /f /f > /g", &mut files).exit_code, 0);
        assert_eq!(files.read("/g").unwrap().len(), 12 << 20);
    }

    #[test]
    fn only_sleep_takes_time() {
        let takes = |line: &str| Command::parse(line).unwrap()[0].takes();
        assert_eq!(takes("sleep 1.5"), Duration::from_millis(1_500));
        assert_eq!(takes("echo 1"), Duration::ZERO);
        assert_eq!(takes("sleep -1"), Duration::ZERO);
    }
}
