package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestOneOf(t *testing.T) {
	t.Parallel()
	o := LogLevel()
	if err := o.Set("loud"); err == nil || err.Error() != "must be one of debug, info, warn, error" || o.String() != "" {
		t.Errorf("%q, %v", o.String(), err)
	}
	if err := o.Set("warn"); err != nil || o.String() != "warn" {
		t.Errorf("%q, %v", o.String(), err)
	}
}

// TestNewLogger: a writer that is not a terminal gets JSON, unless text is configured.
func TestNewLogger(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"auto": `"msg":"shown"`, "json": `"msg":"shown"`, "text": "msg=shown"} {
		var out bytes.Buffer
		log := NewLogger(&out, "warn", format)
		log.Info("hidden")
		log.Warn("shown")
		if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "hidden") {
			t.Errorf("%s: %s", format, text)
		}
	}
}

func TestIsTerminal(t *testing.T) {
	t.Parallel()
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if IsTerminal(f) || IsTerminal(&bytes.Buffer{}) {
		t.Error("a file or a buffer is a terminal")
	}
}

// TestDurationsHaveUnits in both formats: JSON would count nanoseconds.
func TestDurationsHaveUnits(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"after":"1.5s"`, "text": "after=1.5s"} {
		var b strings.Builder
		NewLogger(&b, "info", format).WithGroup("g").Info("m", "after", 1500*time.Millisecond, "n", 3)
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: %s", format, b.String())
		}
	}
}
