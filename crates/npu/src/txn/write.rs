//! A stream to bytes.

use super::{Action, Header, MaskForm, Operation, Transaction};

impl Transaction {
    /// Writes the stream. What [`Transaction::parse`] read comes out byte for byte.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = self.file_bytes();
        let mut bytes = Vec::with_capacity(size);
        let Header { version, generation, rows, columns, memory_rows, padding } = self.header;
        let fields = [version.0, version.1, generation, rows, columns, memory_rows];
        bytes.extend(fields);
        bytes.extend(padding);
        bytes.extend((self.operations.len() as u32).to_le_bytes());
        bytes.extend((size as u32).to_le_bytes());
        for operation in &self.operations {
            write(operation, &mut bytes);
        }
        bytes
    }
}

fn write(operation: &Operation, bytes: &mut Vec<u8>) {
    let Operation { action, spare } = operation;
    let size = (action.file_bytes() as u32).to_le_bytes();
    let spare = &spare.0;
    match action {
        Action::Write { address, value } => {
            bytes.push(0);
            bytes.extend(&spare[..7]);
            bytes.extend(u64::from(address.0).to_le_bytes());
            bytes.extend(value.to_le_bytes());
            bytes.extend(size);
        }
        Action::BlockWrite { address, words } => {
            bytes.push(1);
            bytes.extend(&spare[..7]);
            bytes.extend(address.0.to_le_bytes());
            bytes.extend(size);
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        Action::MaskWrite { address, value, mask, form }
        | Action::MaskPoll { address, value, mask, form } => {
            bytes.push(if matches!(action, Action::MaskWrite { .. }) { 3 } else { 4 });
            bytes.extend(&spare[..7]);
            bytes.extend(u64::from(address.0).to_le_bytes());
            bytes.extend(value.to_le_bytes());
            bytes.extend(mask.to_le_bytes());
            bytes.extend(size);
            if *form == MaskForm::Long {
                bytes.extend(&spare[7..11]);
            }
        }
        Action::Sync { place, extent } => {
            bytes.push(0x80);
            bytes.extend(&spare[..3]);
            bytes.extend(size);
            bytes.extend(place.to_le_bytes());
            bytes.extend(extent.to_le_bytes());
        }
        Action::Patch { address, argument, offset } => {
            bytes.push(0x81);
            bytes.extend(&spare[..3]);
            bytes.extend(size);
            bytes.extend(&spare[3..19]);
            bytes.extend(u64::from(address.0).to_le_bytes());
            bytes.extend(u64::from(*argument).to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        Action::Other { code, body } => {
            bytes.push(*code);
            bytes.extend(&spare[..3]);
            bytes.extend(size);
            bytes.extend(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spare;
    use super::*;
    use crate::tile::Address;

    fn action() -> impl Strategy<Value = Action> {
        let form = || prop_oneof![Just(MaskForm::Short), Just(MaskForm::Long)];
        let address = || any::<u32>().prop_map(Address);
        prop_oneof![
            (address(), any::<u32>()).prop_map(|(address, value)| Action::Write { address, value }),
            (address(), prop::collection::vec(any::<u32>(), 1..20))
                .prop_map(|(address, words)| Action::BlockWrite { address, words }),
            (address(), any::<u32>(), any::<u32>(), form()).prop_map(
                |(address, value, mask, form)| { Action::MaskWrite { address, value, mask, form } }
            ),
            (address(), any::<u32>(), any::<u32>(), form()).prop_map(
                |(address, value, mask, form)| { Action::MaskPoll { address, value, mask, form } }
            ),
            (any::<u32>(), any::<u32>()).prop_map(|(place, extent)| Action::Sync { place, extent }),
            (address(), any::<u32>(), any::<u64>()).prop_map(|(address, argument, offset)| {
                Action::Patch { address, argument, offset }
            }),
            (5..0x80_u8, prop::collection::vec(any::<u32>(), 0..8)).prop_map(|(code, words)| {
                let body = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                Action::Other { code, body }
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            actions in prop::collection::vec((action(), any::<[u8; 20]>()), 0..20),
            columns in any::<u8>(),
        ) {
            let operations = actions
                .into_iter()
                .map(|(action, spare)| Operation { action, spare: Spare(spare) })
                .collect();
            let stream = Transaction { header: Header::new(columns), operations };
            let bytes = stream.to_bytes();
            let read = Transaction::parse(&bytes).unwrap();
            prop_assert_eq!(read.to_bytes(), bytes);
            prop_assert_eq!(read.canonical(), stream.canonical());
        }

        #[test]
        fn any_bytes_are_a_stream_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(stream) = Transaction::parse(&bytes) {
                prop_assert_eq!(stream.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_cut_stream_is_an_error_at_each_length() {
        let write = Action::Write { address: Address(4), value: 1 };
        let stream = Transaction { header: Header::new(5), operations: vec![write.into(); 3] };
        let bytes = stream.to_bytes();
        for length in 0..bytes.len() {
            assert!(Transaction::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_size_that_is_too_small_is_named() {
        let write = Action::Write { address: Address(4), value: 1 };
        let stream = Transaction { header: Header::new(5), operations: vec![write.into()] };
        let mut bytes = stream.to_bytes();
        bytes[36] = 20;
        let error = Transaction::parse(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "not a sound transaction stream: at byte 36: operation 0x0 has 20 bytes, expected 24"
        );
    }
}
