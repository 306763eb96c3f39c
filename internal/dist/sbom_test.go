package dist

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// withModules builds a program that needs other modules, in the versions of this module.
func withModules(t *testing.T) (program string, info *debug.BuildInfo) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const text = "package main\n\nimport \"golang.org/x/term\"\n\nfunc main() { println(term.IsTerminal(0)) }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil || len(info.Deps) < 2 {
		t.Fatalf("%+v, %v", info, err)
	}
	return program, info
}

// TestBOM compares a bill of materials with the build information of the linker.
func TestBOM(t *testing.T) {
	t.Parallel()
	program, info := withModules(t)
	path := filepath.Join(t.TempDir(), "bom")
	if err := writeBOM(path, program, commit{hash: "c0ffee", time: time.Unix(1e9, 0).UTC(), version: "v1.2.3"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got bom
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	main := got.Metadata.Component
	if main.URL != "" || main.Name != info.Main.Path || main.Version != "v1.2.3" || got.Metadata.Timestamp != "2001-09-09T01:46:40Z" {
		t.Errorf("%+v", got.Metadata)
	}
	found := make(map[string]component)
	for _, c := range got.Components {
		found[c.Ref] = c
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")
	if found[std].Name != "std" || len(found) != len(info.Deps)+1 || len(got.Components) != len(found) {
		t.Errorf("%d modules and %s, got %+v", len(info.Deps), std, got.Components)
	}
	for _, m := range info.Deps {
		c := found["pkg:golang/"+m.Path+"@"+m.Version]
		if c.Name != m.Path || c.Version != m.Version || len(c.Properties) != 1 || c.Properties[0].Value != m.Sum {
			t.Errorf("%+v, want %+v", c, m)
		}
	}
	if d := got.Dependencies; len(d) != len(found)+1 || d[0].Ref != main.Ref || len(d[0].DependsOn) != len(found) {
		t.Errorf("%+v", d)
	}
	if err := writeBOM(path, path, commit{}); err == nil {
		t.Error("a file that is not a program has a bill of materials")
	}
}

func TestLibrary(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]debug.Module{
		"pkg:golang/github.com/azure/x@v2.0.0%2Bincompatible": {Path: "github.com/Azure/x", Version: "v2.0.0+incompatible"},
		"pkg:golang/b.example/y@v1.1.0":                       {Path: "a.example/y", Version: "v1.0.0", Replace: &debug.Module{Path: "b.example/y", Version: "v1.1.0"}},
		"pkg:golang/a.example/z@v0.0.0":                       {Path: "a.example/z", Version: "v0.0.0", Replace: &debug.Module{Path: "../z"}},
	} {
		if got := library(&m); got.URL != want || got.Ref != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}
