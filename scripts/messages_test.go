package scripts

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var listMessages = flag.String("messages", "", "write all messages of the program to this file, for a review as a whole")

// message is the text of an error, of a log line or of a finding of doctor and status, with verbs.
type message struct {
	log   bool
	finds bool // a finding: a sentence, and its cure
	place string
	text  string
	whole bool // text is a constant, not a part of an expression
}

// TestMessages holds the form of messages. An error is one line, `what: why: cure`, in lower case, without a period. A
// log message is a constant, so that it can be searched for, and the facts are attributes.
func TestMessages(t *testing.T) {
	t.Parallel()
	all := messages(t)
	if len(all) < 800 {
		t.Fatalf("only %d messages were found: the search is broken", len(all))
	}
	var list strings.Builder
	for _, m := range all {
		kind := "error"
		switch {
		case m.log:
			kind = "log"
		case m.finds:
			kind = "finding"
		}
		fmt.Fprintf(&list, "%s\t%s\t%q\n", kind, m.place, m.text)
		for _, rule := range messageRules {
			if rule.broken(m) {
				t.Errorf("%s: %q: %s", m.place, m.text, rule.cure)
			}
		}
	}
	if *listMessages != "" {
		if err := os.WriteFile(*listMessages, []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// capitalized finds a sentence that begins with a capital, but no name such as LISTEN or RabbitMQ.
var capitalized = regexp.MustCompile(`^[A-Z][a-z]+ `)

var messageRules = []struct {
	cure   string
	broken func(message) bool
}{
	{"a log message is a constant: put the facts into attributes", func(m message) bool { return m.log && !m.whole }},
	{"a log message has no verb for a value: put the facts into attributes", func(m message) bool { return m.log && strings.Contains(m.text, "%") }},
	{"a log message says what is, not what follows from it: leave out what stands behind the semicolon", func(m message) bool { return m.log && strings.Contains(m.text, ";") }},
	{"a log message has at most 12 words", func(m message) bool {
		return m.log && len(strings.Fields(m.text)) > 12 && !strings.Contains(m.text, ":")
	}},
	{"a message ends without a period", func(m message) bool { return !m.finds && strings.HasSuffix(strings.TrimSpace(m.text), ".") }},
	{"a message begins in lower case", func(m message) bool { return !m.finds && capitalized.MatchString(m.text) }},
	{"a finding is a sentence with a period", func(m message) bool { return m.finds && m.text != "%s" && !strings.HasSuffix(m.text, ".") }},
	{"an error is one line", func(m message) bool {
		return !m.log && strings.Contains(m.text, "\n") && !slices.Contains(severalLines, file(m))
	}},
}

// severalLines print the output of another program, a stack or a list after the line of the error.
var severalLines = []string{"cmd/notifyd/demo.go", "cmd/internal/command/inspect/healthcheck.go", "internal/safecall/safecall.go"}

func file(m message) string {
	name, _, _ := strings.Cut(m.place, ":")
	return name
}

// messages returns the texts of the errors and log lines of the program, without the tools of tests and releases.
func messages(t *testing.T) (all []message) {
	t.Helper()
	outside := []string{"bench", "examples", "integration", "scripts", "handlers/handlertest", "cmd/internal/bench", "internal/dist", "internal/lab/testenv", "internal/lab/privateserver", "internal/smtpsink"}
	set := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(outside, name) || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is {
				if m, is := messageOf(call); is {
					m.place = fmt.Sprintf("%s:%d", name, set.Position(call.Pos()).Line)
					all = append(all, m)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// messageOf returns the message that a call makes. The receiver of a log call is called log or Log in this project.
func messageOf(call *ast.CallExpr) (m message, is bool) {
	if f, is := call.Fun.(*ast.Ident); is && f.Name == "found" && len(call.Args) >= 3 { // of doctor: severity, cure, text
		m.text, m.whole = text(call.Args[2])
		m.finds = true
		return m, m.text != ""
	}
	f, is := call.Fun.(*ast.SelectorExpr)
	if !is || len(call.Args) == 0 {
		return m, false
	}
	if f.Sel.Name == "add" && lastName(f.X) == "all" && len(call.Args) >= 5 { // of status: severity, kind, destination, cure, text
		m.text, m.whole = text(call.Args[4])
		m.finds = true
		return m, m.text != ""
	}
	at := 0
	switch name := lastName(f.X) + "." + f.Sel.Name; name {
	case "fmt.Errorf", "errors.New":
	case "log.Debug", "log.Info", "log.Warn", "log.Error", "Log.Debug", "Log.Info", "Log.Warn", "Log.Error":
		m.log = true
	case "log.DebugContext", "log.InfoContext", "log.WarnContext", "log.ErrorContext",
		"Log.DebugContext", "Log.InfoContext", "Log.WarnContext", "Log.ErrorContext":
		m.log, at = true, 1
	default:
		return m, false
	}
	if at >= len(call.Args) {
		return m, false
	}
	m.text, m.whole = text(call.Args[at])
	return m, m.log || m.text != ""
}

func lastName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// text returns the constant parts of an expression, and whether it is a constant. A name stands for a constant.
func text(e ast.Expr) (string, bool) {
	switch x := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(x.Value)
		return s, err == nil
	case *ast.Ident:
		return "", true
	case *ast.BinaryExpr:
		a, _ := text(x.X)
		b, _ := text(x.Y)
		return a + b, false
	}
	return "", false
}
