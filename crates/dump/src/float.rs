//! Floats as Python prints them, because msMemScope's messages contain such floats.

/// For example `33.0`, `0.00048828125`, `9.5367431640625e-07`: the shortest digits that denote the number, with an
/// exponent below 1e-4 and from 1e16 on (Python's `repr`, <https://docs.python.org/3/library/stdtypes.html#float>).
pub(crate) fn float(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, power) = match exponent.strip_prefix('-') {
        Some(power) => ('-', power),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{power:0>2}")
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn as_python_prints_them() {
        let pairs = [
            (0.0, "0.0"),
            (33.0, "33.0"),
            (0.00048828125, "0.00048828125"),
            (7.000000953674316, "7.000000953674316"),
            (9.5367431640625e-07, "9.5367431640625e-07"),
            (5e-05, "5e-05"),
            (1e16, "1e+16"),
        ];
        for (number, text) in pairs {
            assert_eq!(float(number), text);
        }
    }
}
