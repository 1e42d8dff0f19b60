//! SLURM's lists of hosts: `node[001-003,7],login`.

/// The first host of a list; `None` if it is no list.
pub fn first_host(list: &str) -> Option<String> {
    let end = split_at(list)?;
    let item = &list[..end];
    let Some((prefix, rest)) = item.split_once('[') else {
        return (!item.is_empty()).then(|| item.to_string());
    };
    let (inside, suffix) = rest.split_once(']')?;
    let first = inside
        .split([',', '-'])
        .next()
        .filter(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))?;
    Some(format!("{prefix}{first}{suffix}"))
}

/// Where the first item ends: at a comma outside of brackets.
fn split_at(list: &str) -> Option<usize> {
    let mut inside = false;
    for (at, character) in list.char_indices() {
        match character {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => return Some(at),
            _ => {}
        }
    }
    (!inside).then_some(list.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_is_found() {
        for (list, first) in [
            ("node7", "node7"),
            ("a,b", "a"),
            ("node[001-003,7],login", "node001"),
            ("gpu-[12]", "gpu-12"),
            ("rack[3,5-6].example", "rack3.example"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "node[1-3", "node]", "node[x-y]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
