//! Functions that make marks: those of memscope's own library, of mstx and of NVTX, and three of PyTorch's.
//!
//! `nvtxMarkA` and similar functions are exported by libnvToolsExt (NVTX 2). NVTX 3 is header-only: each object that
//! uses it has copies of its own. They can be probed if the object has symbols for them, as PyTorch's libtorch_python
//! has since 2.8. mstx is declared in `mstx/ms_tools_ext.h` of CANN's toolkit. No row here is essential, since programs
//! need not make marks.

use memscope_common::{MARK_BEGIN, MARK_END, MARK_INSTANT, MarkAbi, MarkForm, MarkSource};

use crate::{Layer, Purpose, Row};

/// Symbol of `torch::autograd::profiler::record_function_enter_new(std::string const&, optional<std::string> const&)`,
/// up to its parameters. Its result is returned in memory, so the name is the second argument in registers.
pub const RECORD_FUNCTION: &str = "_ZN5torch8autograd8profiler25record_function_enter_newE";

/// Symbol of `c10::IValue::toCustomClass<torch::autograd::profiler::PythonRecordFunction>() &&`. What ends a `record_function`
/// unpacks its one argument with it, and nothing else that ends often does. The function that then ends it is local to its file, so a
/// stripped library has no name for it. libtorch_cpu and libtorch_python each have a copy of this one, and the linker chooses which of
/// them is called.
pub const RECORD_FUNCTION_END: &str =
    "_ZNO3c106IValue13toCustomClassIN5torch8autograd8profiler20PythonRecordFunctionEEE";

/// Symbol of `torch::autograd::Engine::execute(…)`, up to its parameters. Python's engine calls this function, too.
pub const BACKWARD: &str = "_ZN5torch8autograd6Engine7executeE";

const fn mark(
    name: &'static str,
    library: &'static str,
    source: MarkSource,
    kind: u16,
    form: MarkForm,
    arg: u8,
) -> Row {
    let abi = MarkAbi {
        form,
        arg,
        kind,
        source,
    };
    Row::new(name, None, Layer::Mark, library, Purpose::Mark(abi))
}

const fn nvtx(name: &'static str, kind: u16, form: MarkForm) -> Row {
    mark(name, "libnvToolsExt", MarkSource::Nvtx, kind, form, 0)
}

const fn mstx(name: &'static str, kind: u16, form: MarkForm, arg: u8) -> Row {
    mark(name, "libms_tools_ext", MarkSource::Mstx, kind, form, arg)
}

pub(crate) const ROWS: &[Row] = &[
    mark(
        "memscope_event",
        "libmemscope_mark",
        MarkSource::Memscope,
        MARK_INSTANT,
        MarkForm::Library,
        0,
    ),
    nvtx("nvtxMarkA", MARK_INSTANT, MarkForm::Text),
    nvtx("nvtxRangePushA", MARK_BEGIN, MarkForm::Text),
    nvtx("nvtxRangePop", MARK_END, MarkForm::Bare),
    nvtx("nvtxRangeStartA", MARK_BEGIN, MarkForm::Text),
    nvtx("nvtxRangeEnd", MARK_END, MarkForm::Range),
    mstx("mstxMarkA", MARK_INSTANT, MarkForm::Text, 0),
    mstx("mstxRangeStartA", MARK_BEGIN, MarkForm::Text, 0),
    mstx("mstxRangeEnd", MARK_END, MarkForm::Range, 0),
    mstx("mstxDomainMarkA", MARK_INSTANT, MarkForm::Text, 1),
    mstx("mstxDomainRangeStartA", MARK_BEGIN, MarkForm::Text, 1),
    mstx("mstxDomainRangeEnd", MARK_END, MarkForm::Range, 1),
    mark(
        "torch::autograd::profiler::record_function_enter_new",
        "libtorch_cpu.so",
        MarkSource::RecordFunction,
        MARK_BEGIN,
        MarkForm::String,
        1,
    )
    .mangled(RECORD_FUNCTION),
    mark(
        "c10::IValue::toCustomClass<PythonRecordFunction>",
        "libtorch_cpu.so",
        MarkSource::RecordFunction,
        MARK_END,
        MarkForm::Bare,
        0,
    )
    .mangled(RECORD_FUNCTION_END),
    mark(
        "torch::autograd::Engine::execute",
        "libtorch_cpu.so",
        MarkSource::Backward,
        MARK_INSTANT,
        MarkForm::Bare,
        0,
    )
    .mangled(BACKWARD),
];
