//! Which memory image of which process something is of.

/// A memory image of a process: what the process is from one exec to the next.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Number of execs that were seen while the process was traced.
    pub generation: u64,
    /// Number by which the image is told from others of the process, where it is known.
    pub number: Option<u64>,
}

impl Image {
    /// Whether both are the same image. Where one of the numbers is not known, the execs that were seen tell it; they begin at 0 again
    /// with each attach.
    #[must_use]
    pub fn is(&self, other: &Image) -> bool {
        let of_one_process = (self.pid, self.start_ticks) == (other.pid, other.start_ticks);
        of_one_process
            && match (self.number, other.number) {
                (Some(one), Some(other)) => one == other,
                _ => self.generation == other.generation,
            }
    }
}

impl crate::v1::ProcessFacts {
    /// The process's memory image.
    #[must_use]
    pub fn memory_image(&self) -> Image {
        Image {
            pid: self.pid,
            start_ticks: self.start_ticks,
            generation: self.generation.into(),
            number: self.image,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two attaches of one image may have seen different numbers of execs, and two images the same number.
    #[test]
    fn an_image_is_known_by_its_number_where_both_have_one() {
        let image = |start_ticks, generation, number| Image {
            pid: 7,
            start_ticks,
            generation,
            number,
        };
        let same = |one: Image, other: Image| {
            assert_eq!(one.is(&other), other.is(&one));
            one.is(&other)
        };
        assert!(same(image(1, 1, Some(5)), image(1, 0, Some(5))));
        assert!(!same(image(1, 0, Some(5)), image(1, 0, Some(6))));
        assert!(!same(image(1, 0, Some(5)), image(2, 0, Some(5))));
        assert!(same(image(1, 1, None), image(1, 1, Some(5))));
        assert!(!same(image(1, 1, None), image(1, 0, Some(5))));
        assert!(!same(image(1, 1, None), image(1, 0, None)));
    }
}
