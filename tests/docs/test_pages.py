"""Every command and snippet in README.md and docs/ is run."""

import importlib.util
import re
import subprocess

import pytest
from pages import BUILD, ROOT, RUN_LANGUAGES, Block, PageRunner, blocks_of

DESCRIPTION = ROOT / "python/README.md"  # what a package index shows
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    DESCRIPTION,
    *sorted((ROOT / "docs").glob("*.md")),
]
# Pages of a framework are run in an environment that has it.
NEEDS = {
    "pytorch.md": "torch",
    "pytorch-xla.md": "torch_xla",
    "torchax.md": "torchax",
    "triton.md": "triton",
    "vllm.md": "tpu_inference",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page, tmp_path):
    needed = NEEDS.get(page.name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    runner = PageRunner(tmp_path)
    left_out = []  # of each block that could run: why it did not, or None
    for block in blocks_of(page):
        try:
            reason = runner.run(block)
            if block.language in RUN_LANGUAGES and block.kind != "setup":
                left_out.append(reason)
        except (AssertionError, subprocess.CalledProcessError) as e:
            pytest.fail(f"{page.relative_to(ROOT)}:{block.line}: {e}")
    if left_out and all(left_out):
        pytest.skip("; ".join(sorted(set(left_out))))


def without_blocks(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The fragments that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *sorted((ROOT / "docs/benchmarks").glob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page):
    for target, fragment in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", without_blocks(page)):
        if not target.startswith("http"):
            assert page != DESCRIPTION, f"{target} is not on the package index"
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not fragment or fragment in anchors(file), f"{page.name}: {target}#{fragment}"


def test_every_page_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert f"](docs/{page.name})" in readme, page.name


def test_the_ops_page_is_what_the_program_prints():
    command = [BUILD / "xla-gpu", "ops", "--markdown"]
    printed = subprocess.run(command, text=True, check=True, capture_output=True).stdout
    page = (ROOT / "docs/ops.md").read_text()
    how = "{ sed '/^| op/,$d' docs/ops.md; xla-gpu ops --markdown; } >new && mv new docs/ops.md"
    assert page.endswith(f"\n\n{printed}"), f"docs/ops.md is old: {how}"


# ---- The runner itself ----------------------------------------------------------------------


def run(tmp_path, language, kind, argument, text):
    return PageRunner(tmp_path).run(Block(1, language, kind, argument, text))


def test_a_failing_block_is_found(tmp_path):
    with pytest.raises(AssertionError, match="exit code 3"):
        run(tmp_path, "sh", "run", "", "exit 3\n")


def test_fails_wants_failure_and_text(tmp_path):
    runner = PageRunner(tmp_path)
    runner.run(Block(1, "sh", "fails", "sorry", "echo sorry; exit 1\n"))
    with pytest.raises(AssertionError, match="it succeeded"):
        runner.run(Block(1, "sh", "fails", "", "true\n"))
    with pytest.raises(AssertionError):
        runner.run(Block(1, "sh", "fails", "sorry", "exit 1\n"))


def test_needs_leaves_out_what_is_not_installed(tmp_path):
    runner = PageRunner(tmp_path)
    assert runner.run(Block(1, "sh", "needs", "json", "echo ran\n")) is None
    assert runner.printed == "ran\n"
    assert runner.run(Block(1, "sh", "needs", "json no_such", "exit 1\n")) == "needs no_such"


def test_output_is_compared(tmp_path):
    runner = PageRunner(tmp_path)
    runner.run(Block(1, "sh", "run", "", "echo one two three\n"))
    runner.run(Block(1, "text", "output", "", "one ... three\n"))
    with pytest.raises(AssertionError, match="what was printed"):
        runner.run(Block(1, "text", "output", "", "four\n"))


def test_unknown_markers_and_make_targets_are_found(tmp_path):
    runner = PageRunner(tmp_path)
    with pytest.raises(AssertionError, match="unknown marker"):
        runner.run(Block(1, "sh", "skip", "", ""))
    with pytest.raises(subprocess.CalledProcessError):
        runner.run(Block(1, "sh", "setup", "", "make nothing\n"))
    runner.run(Block(1, "sh", "setup", "", "pip install '.[torch-xla]'\n"))
    with pytest.raises(AssertionError, match="no extra 'torch_xla'"):
        runner.run(Block(1, "sh", "setup", "", "pip install '.[torch_xla]'\n"))
    with pytest.raises(AssertionError, match="not in"):
        runner.run(Block(1, "cpp", "excerpt", "README.md", "no such text\n"))


def test_blocks_carry_their_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- test: fails x y -->\n```sh\nfalse\n```\n\n```python\n1\n```\n")
    assert [(b.line, b.language, b.kind, b.argument, b.text) for b in blocks_of(page)] == [
        (3, "sh", "fails", "x y", "false\n"),
        (7, "python", "run", "", "1\n"),
    ]
