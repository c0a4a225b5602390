"""The prose linter finds the habits that it names, and the tree is free of them."""

import pytest

from docs import prose


@pytest.mark.parametrize("rule", prose.RULES, ids=lambda rule: rule.advice)
def test_each_rule_finds_its_example(rule, tmp_path, capsys):
    assert [found for found, _ in prose.of_text(rule.example)] == [rule]
    for name, text in {
        "page.md": f"# Page\n\n{rule.example}\n",
        "module.py": f'"""A module."""\n\n\ndef f():\n    """{rule.example}"""\n',
        "comment.py": "# " + rule.example.replace(" ", "\n# ", 1) + "\n",
        "kernel.cc": f"int x;  // {rule.example}\n",
    }.items():
        file = tmp_path / name
        file.write_text(text)
        assert prose.main([str(file)]) == 1
        out = capsys.readouterr().out
        assert out.startswith(f"{file}:") and out.rstrip().endswith(rule.advice)


def test_code_is_not_read(tmp_path):
    (tmp_path / "page.md").write_text("```sh\necho hence\n```\n\nA name: `hence`.\n")
    (tmp_path / "module.py").write_text("hence = 'for lack of'\n")
    assert prose.main([str(file) for file in tmp_path.iterdir()]) == 0


def test_the_tree_is_free_of_them():
    assert prose.main([]) == 0
