//! Glob patterns as `KEYS` and `SCAN MATCH` take them: `*`, `?`, `[a-z]`, `[^x]`, `\` quotes the next byte.

/// Whether `text` matches `pattern` as a whole. Takes at most `pattern.len() * text.len()` steps: a `*` that fails is
/// retried from the last one only, never recursively.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t < text.len() {
            if let Some(next) = one(pattern, p, text[t]) {
                p = next;
                t += 1;
                continue;
            }
        } else if p == pattern.len() {
            return true;
        }
        match star {
            Some((after, from)) if from < text.len() => {
                star = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
            _ => return false,
        }
    }
}

/// The position after the element of the pattern at `p` if that element matches `byte`.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// A class from the byte after `[`; one without `]` reaches to the end of the pattern.
fn class(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut hit = false;
    loop {
        match pattern.get(p) {
            None => return (hit != negated).then_some(p),
            Some(b']') => return (hit != negated).then_some(p + 1),
            Some(b'\\') if p + 1 < pattern.len() => {
                hit |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(&low) if pattern.get(p + 1) == Some(&b'-') && pattern.len() > p + 2 => {
                let high = pattern[p + 2];
                hit |= (low.min(high)..=low.max(high)).contains(&byte);
                p += 3;
            }
            Some(&literal) => {
                hit |= literal == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn pattern_against_text_follows_redis() {
        let yes = [
            ("*", ""),
            ("*", "abc"),
            ("h?llo", "hello"),
            ("h*llo", "heeeello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("a\\*b", "a*b"),
            ("*a*b*", "xxaxxbxx"),
            ("", ""),
            ("[^a", "b"),
            ("[b-a]", "a"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no =
            [("h?llo", "hllo"), ("h[ae]llo", "hillo"), ("a", ""), ("", "a"), ("h[^e]llo", "hello"), ("a*b", "abc")];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "a*".repeat(40) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(2000).as_bytes()));
    }
}
