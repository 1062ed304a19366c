"""Bad input: exit code 2, one line on standard error that names the culprit, nothing on standard output."""

import json

import pytest

GOOD = "a,b,y\n" + "\n".join(f"{i},{i % 3},{i % 2}" for i in range(12)) + "\n"
LOGISTIC = ("-t", "y", "-m", "logistic")


def check_one_line(result, *words):
    assert result.exit_code == 2, result.output
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    for word in words:
        assert word in line


def table(change):
    """GOOD with entries replaced: {(row, column): text}."""
    rows = [line.split(",") for line in GOOD.splitlines()]
    for (row, column), text in change.items():
        rows[row][column] = text
    return "\n".join(",".join(row) for row in rows) + "\n"


TABLES = {
    "empty": ("", ("is empty",)),
    "blank": ("\n\n  \n", ("is empty",)),
    "names only": ("a,b,y\n", ("no rows",)),
    "no names": ("1,2,0\n3,4,1\n", ("numbers in its first line",)),
    "duplicate names": ("a,a,y\n1,2,0\n", ("more than one column called 'a'",)),
    "unnamed column": (",b,y\n1,2,0\n", ("no name for column 1", "index=False")),
    "ragged": ("a,b,y\n1,2,0\n1,2\n", ("line 3 has 2 entries", "names 3: 'a', 'b', 'y'")),
    "a line above the names": ("# made by hand\n" + GOOD, ("line 2 has 3 entries", "names 1: '# made by hand'")),
    "open quote": ('a,b,y\n1,"2,0\n', ("not a table in CSV",)),
    "one class": (GOOD.replace(",1\n", ",0\n"), ("'y' has one class only, '0'",)),
    "three classes": (table({(3, 2): "2"}), ("'y' has 3 classes ('0', '1', '2')", "--positive LABEL")),
    "text among numbers": (table({(4, 0): "seven"}), ("'a' mixes numbers ('0') with texts ('seven' in row 4)",)),
    "decimal comma": (GOOD.replace(",", ";").replace("\n1;", "\n1,5;"), ("'a' mixes numbers",)),
    "decimal commas": ("a;y\n" + "\n".join(f"{i},5;{i % 2}" for i in range(9)), ("'0,5'", "--decimal-comma")),
    "thousands": ("a;y\n" + "\n".join(f"1,{i}00,000;{i % 2}" for i in range(9)), ("'1,000,000'", "thousands")),
    "units": ("a,y\n" + "\n".join(f"${i},{i % 2}" for i in range(30)), ("30 different texts", "units", "--drop")),
    "names for a category": (
        "who,y\n" + "\n".join(f"patient {i},{i % 2}" for i in range(30)),
        ("'who' has 30 different texts in 30 rows", "--drop", "--categorical"),
    ),
    "infinite": (table({(2, 1): "inf"}), ("'b' has infinite entries",)),
    "beyond floating point": (table({(2, 1): "1e400"}), ("'b' has infinite entries",)),
    "infinite label": (table({(2, 2): "inf"}), ("'y' has infinite entries",)),
    "too small": (
        GOOD.replace(",2,", ",2e-320,").replace(",1,", ",0,"),
        ("'b' has entries from 0 to 1.99998e-320", "unit"),
    ),
    "measurements as labels": (
        "a,y\n" + "\n".join(f"{i},{i}.5" for i in range(9)),
        ("'y' has 9 classes", "--model gp"),
    ),
    "missing": (table({(2, 1): "", (5, 1): "NA"}), ("2 of 12 rows: 'b' 2", "missing-logistic")),
    "no entries": ("a,b,y\n" + ",1,0\n,2,1\n", ("No entries at all in 'a'", "--drop")),
    "no labels": ("a,y\n1,\n2,NA\n", ("'y' has no entries",)),
    "nothing varies": ("a,y\n1,0\n1,1\n", ("No column is left that varies",)),
    "only the response": ("y\n0\n1\n", ("No columns are left",)),
    "column called intercept": (GOOD.replace("a,b", "a,intercept"), ("called 'intercept'", "rename")),
    "two features of one name": ("c,c=u,y\nu,1,0\nt,2,1\n", ("Two features are called 'c=u'",)),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(provi, write, case):
    text, words = TABLES[case]
    check_one_line(provi("fit", write("data.csv", text), *LOGISTIC), *words)


OPTIONS = {
    "missing file": (("nowhere.csv", *LOGISTIC), ("There is no file nowhere.csv",)),
    "folder": ((".", *LOGISTIC), ("is a folder",)),
    "unknown kind": (("data.xlsx", *LOGISTIC), (".csv", ".parquet")),
    "no target": (("data.csv", "-m", "logistic"), ("--target COLUMN is needed", "'a', 'b', 'y'")),
    "no model": (("data.csv", "-t", "y"), ("--model is needed", "logistic, poisson, linear", "gp, missing-logistic")),
    "unknown target": (("data.csv", "-t", "z", "-m", "gp"), ("--target: there is no column 'z'", "'a', 'b', 'y'")),
    "near target": (("data.csv", "-t", "Y", "-m", "gp"), ("Did you mean 'y'?",)),
    "unknown column": (("data.csv", *LOGISTIC, "--columns", "a,c"), ("--columns: there is no column 'c'",)),
    "unknown drop": (("data.csv", *LOGISTIC, "--drop", "c"), ("--drop: there is no column 'c'",)),
    "response as column": (("data.csv", *LOGISTIC, "--columns", "a,y"), ("'y' is the response",)),
    "all dropped": (("data.csv", *LOGISTIC, "--drop", "a,b"), ("No columns are left",)),
    "prior without a name": (("data.csv", *LOGISTIC, "--prior", "normal(0,1)"), ("--prior must be NAME=PRIOR",)),
    "prior of nothing": (("data.csv", *LOGISTIC, "--prior", "c=normal(0,1)"), ("names 'c'", "'intercept', 'a', 'b'")),
    "prior of no law": (("data.csv", *LOGISTIC, "--prior", "a=wide"), ("'a' must be written as normal(0, 1)",)),
    "two priors": (("data.csv", *LOGISTIC, "--prior", "a=normal(0,1)", "--prior-scale", "2"), ("give one of them",)),
    "exposure of labels": (("data.csv", *LOGISTIC, "--exposure", "a"), ("--exposure is for --model poisson",)),
    "censored labels": (("data.csv", *LOGISTIC, "--censored", "a"), ("--censored is for --model weibull",)),
    "negative weights": (("data.csv", *LOGISTIC, "--weights", "negative"), ("weights must not be",)),
    "offset of texts": (("data.csv", *LOGISTIC, "--offset", "word"), ("'word' must hold numbers",)),
    "graded texts": (("data.csv", "-t", "word", "-m", "ordinal"), ("whose order is not known",)),
    "no times": (("data.csv", "-t", "negative", "-m", "weibull"), ("must hold positive times",)),
    "unknown label": (("data.csv", *LOGISTIC, "--positive", "yes"), ("no label 'yes'", "'0', '1'")),
    "not counts": (("data.csv", "-t", "negative", "-m", "poisson"), ("'negative' must hold counts", "not -1")),
    "text response": (("data.csv", "-t", "word", "-m", "poisson"), ("'word' must hold numbers", "'w'")),
    "bad budget": (("data.csv", *LOGISTIC, "--budget", "soon"), ("--budget", "'soon'")),
    "bad tol": (("data.csv", *LOGISTIC, "--tol", "-1"), ("tol must be a positive number",)),
    "bad prior": (("data.csv", *LOGISTIC, "--prior-scale", "-1"), ("--prior-scale must be a positive",)),
    "label of counts": (("data.csv", "-t", "y", "-m", "poisson", "--positive", "1"), ("--positive is for two labels",)),
    "not writable": (
        ("data.csv", *LOGISTIC, "--report", "/proc/r.html"),
        ("--report: /proc/r.html cannot be written",),
    ),
    "report over the data": (("data.csv", *LOGISTIC, "--report", "data.csv"), ("data.csv is the file that is read",)),
    "one file for two": (
        ("data.csv", *LOGISTIC, "--report", "f", "--save", "./f"),
        ("--save: f is that of --report already",),
    ),
    "no such model": (("data.csv", "-t", "y", "-m", "logit"), ("'logit' is not one of 'logistic'", "fit --help")),
    "no such option": (("data.csv", *LOGISTIC, "--tolerance", "1"), ("No such option: --tolerance", "fit --help")),
    "no source": ((), ("Missing argument 'SOURCE'",)),
    "two sources": (("data.csv", "more.csv"), ("(more.csv)",)),
    "text for a number": (("data.csv", *LOGISTIC, "--tol", "small"), ("'--tol'", "a valid")),
    "seed below 0": (("data.csv", *LOGISTIC, "--seed", "-1"), ("-1 is not a whole number from 0",)),
    "huge seed": (("data.csv", *LOGISTIC, "--seed", str(2**63)), ("is not a whole number from 0 to 2^63 - 1",)),
    "no folder": (("data.csv", *LOGISTIC, "--report", "no/where.html"), ("--report: there is no folder no",)),
    "folder as file": (("data.csv", *LOGISTIC, "--save", "."), ("--save: . is a folder",)),
    "save of missing-logistic": (
        ("data.csv", "-t", "y", "-m", "missing-logistic", "--save", "r.fit"),
        ("--save cannot be used with --model missing-logistic",),
    ),
    "prior of a process": (("data.csv", "-t", "y", "-m", "gp", "--prior-scale", "2"), ("--prior-scale is for",)),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(provi, write, tmp_path, case):
    words, said = OPTIONS[case]
    changed = GOOD
    if "negative" in words:
        changed = changed.replace("b,y", "negative,y").replace(",2,", ",-1,")
    if "word" in words:
        changed = changed.replace("b,y", "word,y").replace(",2,", ",u,").replace(",1,", ",v,").replace(",0,", ",w,")
    write("data.csv", changed)
    write("data.xlsx", GOOD)
    check_one_line(provi("fit", *words), *said)
    assert (tmp_path / "data.csv").read_text(encoding="utf-8") == changed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "data.xlsx"]


MODELS = {
    "missing file": ("nowhere.py:target", ("There is no file nowhere.py",)),
    "no name": ("model.py", ("write model.py:NAME",)),
    "unknown name": ("model.py:other", ("no 'other' in the file", "target", "make")),
    "not a target": ("model.py:number", ("of type int, not a provi target", "LogDensity")),
    "a density": ("model.py:density", ("missing a required argument: 'z'", "LogDensity")),
    "raises": ("model.py:failing", ("model.py, line 25: ZeroDivisionError: division by zero",)),
    "raises when traced": ("model.py:untraceable", ("model.py, line 29: ", "no_such_name")),
    "exits": ("model.py:leaving", ("model.py, line 34", "exit 3")),
    "exits when traced": ("model.py:leaving_late", ("model.py, line 34", "exit 3")),
    "near name": ("model.py:targte", ("Did you mean 'target'?",)),
    "asks": ("model.py:asking", ("model.py, line 42", "asks for input")),
    "model of NumPyro": ("model.py:numpyro_model", ("provi.from_numpyro(model, *arguments)",)),
}


@pytest.mark.parametrize("case", MODELS)
def test_model_files(provi, model_file, case):
    source, words = MODELS[case]
    result = provi("fit", source, "--quiet")
    assert result.exit_code == 2 and not result.stdout, result.output
    (line,) = (line for line in result.stderr.splitlines() if line != "a line that the model prints")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import provi\n\ntarget = provi.targets.Gaussian([0.0], [[-1.0]])\n",
            ("bad.py, line 3: ValueError: ", "positive"),
        ),
        ("target = 1\ndef f(:\n", ("bad.py, line 2: SyntaxError",)),
        ("def f():\n    return {}['key']\n\ntarget = f()\n", ("bad.py, line 2: KeyError: 'key'",)),
        ("import no_such_package\n", ("bad.py, line 1: ModuleNotFoundError", "no_such_package")),
        ("x = 1\0\n", ("bad.py", "SyntaxError")),
        ("raise SystemExit('two\\nlines')\n", ("bad.py, line 1: SystemExit", "exit two lines")),
    ],
)
def test_files_that_raise_name_the_line(provi, write, text, words):
    check_one_line(provi("fit", f"{write('bad.py', text)}:target"), *words)


def test_options_of_tables_are_refused_for_model_files(provi, model_file):
    check_one_line(provi("fit", f"{model_file}:target", "--target", "y"), "--target is for tables")
    check_one_line(provi("fit", f"{model_file}:target", "--no-standardise"), "--standardise is for tables")


def test_not_text_at_all(provi, tmp_path):
    (tmp_path / "data.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    check_one_line(provi("fit", "data.csv", *LOGISTIC), "not UTF-8")


def test_debug_shows_the_traceback(provi, model_file):
    result = provi("fit", f"{model_file}:failing", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr and "return 1 / scale" in result.stderr


def test_with_json_the_error_is_an_object_too(provi):
    result = provi("fit", "nowhere.csv", *LOGISTIC, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {"verdict": "error", "error": "There is no file nowhere.csv."}
