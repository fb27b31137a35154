//! The messages of `memscope.v1`, and the JSON of `--json` that their types are taught: names as in the files, integers as
//! numbers, unknown as null, enums as lower-case words.

use std::path::Path;

use anyhow::{Result, bail};
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::source_code_info::Location;

/// Writes the types, the descriptors for reflection, and the table of answers into `folder`.
pub fn generate(descriptors: FileDescriptorSet, folder: &Path) -> Result<()> {
    // Reflection shows the comments. Where in the file each other thing stands, nobody asks, and it is
    // more than a quarter of the descriptors that every program carries.
    let mut shown = descriptors.clone();
    for file in &mut shown.file {
        if let Some(info) = &mut file.source_code_info {
            info.location.retain(has_comment);
        }
    }
    let encoded = prost::Message::encode_to_vec(&shown);
    std::fs::write(folder.join("descriptors.bin"), encoded)?;
    std::fs::write(folder.join("answers.rs"), answers(&descriptors))?;

    let mut builder = prost_build::Config::new();
    builder
        .out_dir(folder)
        // What a field means stands once, in the `.proto` files.
        .disable_comments(["."])
        .message_attribute(".", "#[derive(serde::Serialize)]")
        // A process reads as one flat object, though its facts travel as a message of their own.
        .field_attribute(".memscope.v1.Process.facts", "#[serde(flatten)]")
        // There are millions of them: it is written by hand.
        .extern_path(".memscope.v1.Block", "crate::block::Block")
        // Without the leading dot, the rule does not reach into the variants of the oneof.
        .field_attribute("Event.body", "#[serde(flatten)]");
    for file in &descriptors.file {
        for message in &file.message_type {
            let name = format!(".{}.{}", file.package(), message.name());
            for oneof in &message.oneof_decl {
                // proto3's `optional` makes a hidden oneof whose name begins with `_`.
                if oneof.name().starts_with('_') {
                    continue;
                }
                builder.type_attribute(
                    format!("{name}.{}", oneof.name()),
                    "#[derive(serde::Serialize)] \
                     #[serde(tag = \"kind\", content = \"body\", rename_all = \"snake_case\")]",
                );
            }
            for field in &message.field {
                if field.r#type() != Type::Enum {
                    continue;
                }
                if field.label() == Label::Repeated || field.proto3_optional() {
                    bail!("{name}.{}: only plain enum fields", field.name());
                }
                let kind = field.type_name().rsplit('.').next().unwrap_or_default();
                builder.field_attribute(
                    format!("{name}.{}", field.name()),
                    format!("#[serde(serialize_with = \"crate::json::word::<{kind}, _>\")]"),
                );
            }
        }
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}

fn has_comment(location: &Location) -> bool {
    location.leading_comments.is_some()
        || location.trailing_comments.is_some()
        || !location.leading_detached_comments.is_empty()
}

/// The function that finds the type of an answer by the path of its method.
fn answers(descriptors: &FileDescriptorSet) -> String {
    let mut rows = String::new();
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                let answer = method.output_type().rsplit('.').next().unwrap_or_default();
                rows.push_str(&format!(
                    "\"/{}.{}/{}\" => json_of::<v1::{answer}>(message),\n",
                    file.package(),
                    service.name(),
                    method.name()
                ));
            }
        }
    }
    format!(
        "// This file is @generated.\n\
         fn by_path(path: &str, message: &[u8]) -> Option<Result<Vec<u8>, AnswerError>> {{\n\
         Some(match path {{\n{rows}_ => return None,\n}})\n}}\n"
    )
}
