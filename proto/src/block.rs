//! A block of a snapshot as a message. A snapshot may have millions of them, so how they are written is not left to the generated code: that
//! is compiled anew for each kind of buffer, in the crate that names it, and asks for each field's room in the buffer.
//!
//! Owns: how the fields of `Block` are encoded and decoded, which is as `snapshot.proto` says. Refuses: all other messages.

use crate::v1::BlockState;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, int32, skip_field, uint32, uint64};
use prost::{DecodeError, Message};

/// Room for all bytes of a block: six fields, each a byte of its number and up to ten of its value.
const ROOM: usize = 6 * 11;

/// One block of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Block {
    /// Where it begins in the device's address space.
    pub address: u64,
    /// Rounded size in bytes.
    pub size_bytes: u64,
    /// Size asked for, in bytes; of free room, at its last use (0: none is known).
    pub requested_bytes: Option<u64>,
    /// Its state, a number of [`BlockState`].
    #[serde(serialize_with = "crate::json::word::<BlockState, _>")]
    pub state: i32,
    /// When it came, boot-time nanoseconds.
    pub since_boot_ns: Option<u64>,
    /// Where stacks are asked for: the stack that it comes from, a place among the stacks of all parts, from 0.
    // A document of blocks without stacks does not say so for each block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

impl Block {
    /// Its state; unspecified where this build does not know the number.
    #[must_use]
    pub fn state(&self) -> BlockState {
        BlockState::try_from(self.state).unwrap_or_default()
    }

    /// Writes the fields that are there into `room`; returns how many bytes they took.
    fn write(&self, mut room: &mut [u8]) -> usize {
        let all = room.len();
        if self.address != 0 {
            uint64::encode(1, &self.address, &mut room);
        }
        if self.size_bytes != 0 {
            uint64::encode(2, &self.size_bytes, &mut room);
        }
        if let Some(requested) = &self.requested_bytes {
            uint64::encode(3, requested, &mut room);
        }
        if self.state != 0 {
            int32::encode(4, &self.state, &mut room);
        }
        if let Some(since) = &self.since_boot_ns {
            uint64::encode(5, since, &mut room);
        }
        if let Some(stack) = &self.stack {
            uint32::encode(6, stack, &mut room);
        }
        all - room.len()
    }
}

impl Message for Block {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let mut room = [0; ROOM];
        let bytes = self.write(&mut room);
        buf.put_slice(room.get(..bytes).unwrap_or_default());
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let (field, merged) = match tag {
            1 => ("address", uint64::merge(wire, &mut self.address, buf, ctx)),
            2 => (
                "size_bytes",
                uint64::merge(wire, &mut self.size_bytes, buf, ctx),
            ),
            3 => {
                let value = self.requested_bytes.get_or_insert_default();
                ("requested_bytes", uint64::merge(wire, value, buf, ctx))
            }
            4 => ("state", int32::merge(wire, &mut self.state, buf, ctx)),
            5 => {
                let value = self.since_boot_ns.get_or_insert_default();
                ("since_boot_ns", uint64::merge(wire, value, buf, ctx))
            }
            6 => {
                let value = self.stack.get_or_insert_default();
                ("stack", uint32::merge(wire, value, buf, ctx))
            }
            _ => return skip_field(wire, tag, buf, ctx),
        };
        merged.map_err(|mut error| {
            error.push("Block", field);
            error
        })
    }

    fn encoded_len(&self) -> usize {
        let plain = |tag, value: u64| match value {
            0 => 0,
            value => uint64::encoded_len(tag, &value),
        };
        let known = |tag, value: &Option<u64>| {
            let bytes = |value| uint64::encoded_len(tag, value);
            value.as_ref().map_or(0, bytes)
        };
        let state = match self.state {
            0 => 0,
            state => int32::encoded_len(4, &state),
        };
        let stack = |stack| uint32::encoded_len(6, stack);
        plain(1, self.address)
            + plain(2, self.size_bytes)
            + known(3, &self.requested_bytes)
            + state
            + known(5, &self.since_boot_ns)
            + self.stack.as_ref().map_or(0, stack)
    }

    fn clear(&mut self) {
        *self = Block::default();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::FILE_DESCRIPTOR_SET;
    use proptest::option::of;
    use proptest::prelude::*;
    use prost_types::FileDescriptorSet;
    use prost_types::field_descriptor_proto::Type;

    /// The same message by the code that prost makes.
    #[derive(Clone, PartialEq, Message)]
    struct Derived {
        #[prost(uint64, tag = "1")]
        address: u64,
        #[prost(uint64, tag = "2")]
        size_bytes: u64,
        #[prost(uint64, optional, tag = "3")]
        requested_bytes: Option<u64>,
        #[prost(int32, tag = "4")]
        state: i32,
        #[prost(uint64, optional, tag = "5")]
        since_boot_ns: Option<u64>,
        #[prost(uint32, optional, tag = "6")]
        stack: Option<u32>,
    }

    impl From<Block> for Derived {
        fn from(block: Block) -> Derived {
            Derived {
                address: block.address,
                size_bytes: block.size_bytes,
                requested_bytes: block.requested_bytes,
                state: block.state,
                since_boot_ns: block.since_boot_ns,
                stack: block.stack,
            }
        }
    }

    prop_compose! {
        /// Numbers of all lengths, zero among them.
        fn number()(bits in 0..=64_u32, value in any::<u64>()) -> u64 {
            value.checked_shr(64 - bits).unwrap_or(0)
        }
    }

    prop_compose! {
        fn block()(
            address in number(),
            size_bytes in number(),
            requested_bytes in of(number()),
            state in prop_oneof![0..5_i32, any::<i32>()],
            since_boot_ns in of(number()),
            stack in of(any::<u32>()),
        ) -> Block {
            Block { address, size_bytes, requested_bytes, state, since_boot_ns, stack }
        }
    }

    proptest! {
        #[test]
        fn a_block_is_written_and_read_as_prost_does_it(block in block(), after in proptest::collection::vec(any::<u8>(), 0..30)) {
            let derived = Derived::from(block);
            let mut bytes = block.encode_to_vec();
            prop_assert_eq!(&bytes, &derived.encode_to_vec());
            prop_assert_eq!(bytes.len(), block.encoded_len());
            prop_assert_eq!(Block::decode(bytes.as_slice()).ok(), Some(block));
            // Fields again, fields of a newer version, and what is no message at all.
            bytes.extend(after);
            let (read, expected) = (Block::decode(bytes.as_slice()), Derived::decode(bytes.as_slice()));
            // Errors too, with the field's name but for the message's own.
            let text = |error: DecodeError| error.to_string().replace("Derived.", "Block.");
            prop_assert_eq!(read.map(Derived::from).map_err(text), expected.map_err(text));
        }
    }

    #[test]
    fn a_block_has_the_fields_of_the_proto_file() {
        let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let messages = files.file.iter().flat_map(|file| &file.message_type);
        let found: Vec<_> = messages.filter(|one| one.name() == "Block").collect();
        let [block] = found.as_slice() else {
            panic!("{} messages are called Block", found.len());
        };
        let fields = block.field.iter();
        let fields: Vec<_> = fields
            .map(|field| {
                (
                    field.number(),
                    field.name(),
                    field.r#type(),
                    field.proto3_optional(),
                )
            })
            .collect();
        let expected = [
            (1, "address", Type::Uint64, false),
            (2, "size_bytes", Type::Uint64, false),
            (3, "requested_bytes", Type::Uint64, true),
            (4, "state", Type::Enum, false),
            (5, "since_boot_ns", Type::Uint64, true),
            (6, "stack", Type::Uint32, true),
        ];
        assert_eq!(fields, expected);
    }
}
