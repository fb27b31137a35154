//! Programs that were built with an earlier `.proto` go on working: what `released.txt` lists stays as it is.
//!
//! `MEMSCOPE_WRITE=1` adds what is new to the file. It never removes a line: who takes something away has to remove its line by hand, with a
//! reason that holds for those who use it.
#![allow(clippy::unwrap_used)]

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::BTreeSet;
use std::path::Path;

/// A line for each field, value and method: its name and number and whatever a peer relies on.
fn lines() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(memscope_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut lines = BTreeSet::new();
    let own = set
        .file
        .iter()
        .filter(|file| file.package() == "memscope.v1");
    for file in own {
        for message in &file.message_type {
            add_message(&mut lines, "", message);
        }
        for values in &file.enum_type {
            add_enum(&mut lines, "", values);
        }
        for service in &file.service {
            for method in &service.method {
                let stream = |is: bool| if is { "stream " } else { "" };
                lines.insert(format!(
                    "method {}.{}({}{}) returns ({}{})",
                    service.name(),
                    method.name(),
                    stream(method.client_streaming()),
                    method.input_type(),
                    stream(method.server_streaming()),
                    method.output_type()
                ));
            }
        }
    }
    lines
}

fn add_message(lines: &mut BTreeSet<String>, within: &str, message: &DescriptorProto) {
    let name = format!("{within}{}", message.name());
    for field in &message.field {
        lines.insert(format!("field {name}.{}", field_line(message, field)));
    }
    for inner in &message.nested_type {
        add_message(lines, &format!("{name}."), inner);
    }
    for values in &message.enum_type {
        add_enum(lines, &format!("{name}."), values);
    }
}

fn field_line(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    };
    let presence = match (field.label(), field.oneof_index) {
        (Label::Repeated, _) => "repeated ".to_owned(),
        (_, Some(_)) if field.proto3_optional() => "optional ".to_owned(),
        (_, Some(index)) => {
            let oneof = &message.oneof_decl[usize::try_from(index).unwrap()];
            format!("one of {}: ", oneof.name())
        }
        _ => String::new(),
    };
    format!("{} = {} {presence}{kind}", field.name(), field.number())
}

fn add_enum(lines: &mut BTreeSet<String>, within: &str, values: &EnumDescriptorProto) {
    for value in &values.value {
        let name = format!("{within}{}", values.name());
        lines.insert(format!(
            "value {name}.{} = {}",
            value.name(),
            value.number()
        ));
    }
}

#[test]
fn what_was_there_stays() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("released.txt");
    let now = lines();
    assert!(now.len() > 500, "{}", now.len());
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    let known: BTreeSet<String> = read().lines().map(str::to_owned).collect();
    let gone: Vec<&String> = known.difference(&now).collect();
    assert!(
        gone.is_empty(),
        "programs that were built before rely on these: {gone:#?}\nLeave them, with a number of their own for what is new."
    );
    if std::env::var_os("MEMSCOPE_WRITE").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text).unwrap();
    }
    let known: BTreeSet<String> = read().lines().map(str::to_owned).collect();
    let new: Vec<&String> = now.difference(&known).collect();
    assert!(
        new.is_empty(),
        "proto/released.txt lacks {new:#?}\nMEMSCOPE_WRITE=1 cargo test -p memscope-proto adds them."
    );
}
