//! Where a function ends: its `ret` instructions.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// A piece of a function's code.
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    /// Address in the file's own numbering.
    pub(super) address: u64,
    /// Offset in the file.
    pub(super) offset: u64,
}

impl Part {
    fn has(&self, address: u64) -> bool {
        address
            .checked_sub(self.address)
            .is_some_and(|offset| offset < self.bytes.len() as u64)
    }
}

/// Offsets in the file of the `ret` instructions of a function. Its first part has its entry; another one is what the
/// compiler has put elsewhere because it runs seldom. Fails if the function may be left in another way: by a jump whose
/// target is not known, or by a jump to another function.
pub(super) fn find(parts: &[Part]) -> Result<Vec<u64>, &'static str> {
    let mut ends = Vec::new();
    for part in parts {
        let mut decoder = Decoder::with_ip(64, &part.bytes, part.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = decoder.position() as u64;
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return Err("it cannot be disassembled to its end");
            }
            match instruction.flow_control() {
                FlowControl::Return => ends.push(part.offset + at),
                FlowControl::IndirectBranch => {
                    return Err("it jumps to an address that is computed");
                }
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let near = matches!(
                        instruction.op0_kind(),
                        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
                    );
                    let target = instruction.near_branch_target();
                    if !near || !parts.iter().any(|part| part.has(target)) {
                        return Err("it jumps to another function");
                    }
                }
                _ => {}
            }
        }
    }
    match ends.is_empty() {
        true => Err("it has no ret instruction"),
        false => Ok(ends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &[u8]) -> Result<Vec<u64>, &'static str> {
        find(&[Part {
            bytes: code.to_vec(),
            address: 0x1000,
            offset: 0x400,
        }])
    }

    #[test]
    fn every_ret_is_an_end() {
        // test edi, edi; je +2; ret; nop; xor eax, eax; ret
        let code = [0x85, 0xff, 0x74, 0x02, 0xc3, 0x90, 0x31, 0xc0, 0xc3];
        assert_eq!(of(&code), Ok(vec![0x404, 0x408]));
        // jmp to itself is inside; a ret behind it is found as well.
        assert_eq!(of(&[0xeb, 0xfe, 0xc3]), Ok(vec![0x402]));
    }

    #[test]
    fn a_part_that_lies_elsewhere_is_followed() {
        // jmp to the other part, which returns.
        let first = Part {
            bytes: vec![0xe9, 0xfb, 0x0f, 0, 0],
            address: 0x1000,
            offset: 0x400,
        };
        let other = Part {
            bytes: vec![0x90, 0xc3],
            address: 0x2000,
            offset: 0x800,
        };
        assert_eq!(find(&[first, other]), Ok(vec![0x801]));
    }

    #[test]
    fn other_ways_out_are_refused() {
        assert_eq!(
            of(&[0xff, 0xe0]),
            Err("it jumps to an address that is computed")
        );
        assert_eq!(of(&[0xe9, 0, 1, 0, 0]), Err("it jumps to another function"));
        assert_eq!(of(&[0x90]), Err("it has no ret instruction"));
        assert_eq!(
            of(&[0xc3, 0x0f]),
            Err("it cannot be disassembled to its end")
        );
        assert_eq!(of(&[]), Err("it has no ret instruction"));
    }

    proptest::proptest! {
        #[test]
        fn any_code_is_read_or_refused(code: Vec<u8>) {
            if let Ok(ends) = of(&code) {
                proptest::prop_assert!(ends.iter().all(|end| (*end as usize) < 0x400 + code.len()));
            }
        }
    }
}
