//! Keeps passwords out of messages.

/// The most characters of a value that a message shows.
const MAX_SHOWN: usize = 64;

/// A message without the user and password of a URL, which end at its last `@`, and without its query, which holds them in
/// the URL of a Unix socket. Also without the arguments of a command that Redis repeats in an error: those of `HELLO` and
/// `AUTH` include the password.
pub fn masked(message: &str) -> String {
    let lines: Vec<_> = message.split('\n').map(masked_line).collect();
    lines.join("\n")
}

fn masked_line(line: &str) -> String {
    let line = line.split(", with args beginning with").next();
    let line = line.unwrap_or_default();
    let Some((before, url)) = line.split_once("://") else {
        return line.to_owned();
    };
    let (user, rest) = match url.rsplit_once('@') {
        Some((_, rest)) => ("***@", rest),
        None => ("", url),
    };
    let outside = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`');
    match rest.split_once('?') {
        // To the end of the line, since the value of a parameter may contain anything.
        Some((address, query)) if !address.contains(outside) && !query.starts_with("***") => {
            format!("{before}://{user}{address}?***")
        }
        _ => format!("{before}://{user}{rest}"),
    }
}

/// A value for a message: masked, in backticks, in one line, and not long.
pub fn shown(value: &str) -> String {
    let line = value.replace(char::is_control, " ");
    let masked = masked(&line);
    match masked.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("`{}...`", masked.get(..end).unwrap_or_default()),
        None => format!("`{masked}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::rows;

    #[test]
    fn only_what_may_be_a_password_is_masked() {
        let table = "
            redis://:pw@h:1/2                   => redis://***@h:1/2
            a 'redis://u:p@w d@h' b             => a 'redis://***@h' b
            redis+unix:///s?db=1&pass=p w' q    => redis+unix:///s?***
            rediss://u:p?w#x@h                  => rediss://***@h
            `redis+unix:///s?***`: no           => `redis+unix:///s?***`: no
            ask http://h:1/x or http://i:2      => ask http://h:1/x or http://i:2
            `redis://HOST:PORT`: is it there?   => `redis://HOST:PORT`: is it there?
            ERR 'HELLO', with args beginning with: 'pw' => ERR 'HELLO'
            ann@host                            => ann@host
        ";
        for line in rows::<1>(table).map(|[line]| line) {
            let (from, to) = line.split_once("=>").unwrap();
            assert_eq!(masked(from.trim()), to.trim());
        }
        assert_eq!(masked("a\nx://p@h\nb@c\n"), "a\nx://***@h\nb@c\n");
    }

    #[test]
    fn a_value_is_shown_in_one_short_line() {
        assert_eq!(shown("redis://:p\nw@h"), "`redis://***@h`");
        assert_eq!(shown(&"é".repeat(65)), format!("`{}...`", "é".repeat(64)));
    }
}
