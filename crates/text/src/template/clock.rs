//! The `strftime_now` of Hugging Face templates, over a time from the caller.

use minijinja::{Error, ErrorKind};

/// A local time for templates that print the date. Nothing here reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarTime {
    /// Year of the Gregorian calendar.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl CalendarTime {
    /// Returns the day of the week, 0 for Sunday, by Sakamoto's rule.
    fn weekday(self) -> usize {
        const SHIFTS: [i64; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = i64::from(self.year) - i64::from(self.month < 3);
        let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let days = year + leaps + SHIFTS[self.month_index()] + i64::from(self.day);
        days.rem_euclid(7) as usize
    }

    fn month_index(self) -> usize {
        usize::from(self.month.clamp(1, 12)) - 1
    }

    /// Formats the time as C's `strftime` does in the C locale, for the directives that chat
    /// templates use.
    pub(crate) fn format(self, pattern: &str) -> Result<String, Error> {
        let mut text = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut directive = characters.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = characters.next();
            }
            let part = self.directive(directive, unpadded).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: unknown directive %{}", directive.unwrap_or(' ')),
                )
            })?;
            text.push_str(&part);
        }
        Ok(text)
    }

    fn directive(self, directive: Option<char>, unpadded: bool) -> Option<String> {
        let two = |number: u8| if unpadded { number.to_string() } else { format!("{number:02}") };
        let twelve = match self.hour % 12 {
            0 => 12,
            hour => hour,
        };
        let month = MONTHS[self.month_index()];
        let weekday = WEEKDAYS[self.weekday()];
        Some(match directive? {
            'Y' => self.year.to_string(),
            'y' => two(self.year.rem_euclid(100) as u8),
            'm' => two(self.month),
            'd' => two(self.day),
            'e' => format!("{:2}", self.day),
            'H' => two(self.hour),
            'I' => two(twelve),
            'M' => two(self.minute),
            'S' => two(self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month.to_owned(),
            'b' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_c_writes_them() {
        let time = CalendarTime { year: 2026, month: 11, day: 5, hour: 15, minute: 7, second: 9 };
        let text = time.format("%A %a %d %-d %B %b %Y %y %H:%M:%S %I%p %F %T %e %%").unwrap();
        assert_eq!(
            text,
            "Thursday Thu 05 5 November Nov 2026 26 15:07:09 03PM 2026-11-05 15:07:09  5 %"
        );
        let leap = CalendarTime { year: 2000, month: 2, day: 29, hour: 0, minute: 0, second: 0 };
        assert_eq!(leap.format("%a %I%p").unwrap(), "Tue 12AM");
        assert!(time.format("%Q").is_err());
        assert!(time.format("%").is_err());
    }
}
