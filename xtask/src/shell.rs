//! Words for a POSIX shell.

/// The script for CMD: one word is a shell command line, several are a program and its arguments.
pub fn script(command: &[String]) -> String {
    match command {
        [line] => line.clone(),
        words => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
    }
}

/// `word` so that a shell reads it back as it is.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn one_word_is_a_command_line() {
        assert_eq!(script(&words(&["a; b | c"])), "a; b | c");
    }

    #[test]
    fn several_words_are_a_program_and_its_arguments() {
        assert_eq!(script(&words(&["echo", "a b", "", "$x", "it's"])), r"echo 'a b' '' '$x' 'it'\''s'");
    }

    #[test]
    fn a_shell_reads_the_words_back() {
        let hostile = words(&["printf", "%s\n", "a  b", "'", "\"", "\\", "*", "~", "a\nb", "é", ""]);
        let out = std::process::Command::new("sh").arg("-c").arg(script(&hostile)).output().unwrap();
        let expected: String = hostile[2..].iter().map(|word| format!("{word}\n")).collect();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    }

    #[test]
    fn an_assignment_as_a_program_stays_a_word() {
        assert_eq!(script(&words(&["env", "A=b"])), "env A=b");
    }
}
