package dist_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/dist"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const program = `package main

import (
	"fmt"
	"runtime"
)

var version, commit string

func main() {
	_, file, _, _ := runtime.Caller(0)
	fmt.Printf("{\"version\": %q, \"commit\": %q, \"file\": %q}", version, commit, file)
}
`

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository creates a repository with a small program, and a clone of it.
func repository(t *testing.T) (first, second string) {
	t.Helper()
	first, second = filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "a", "longer", "path")
	testenv.WriteFile(t, filepath.Join(first, "go.mod"), "module example.com/tiny\n\ngo 1.26\n")
	testenv.WriteFile(t, filepath.Join(first, "cmd", "tiny", "main.go"), program)
	testenv.WriteFile(t, filepath.Join(first, "etc", "deep", "tiny.conf"), "a = 1\n")
	git(t, first, "init", "-q", "-b", "main")
	git(t, first, "add", ".")
	git(t, first, "commit", "-q", "-m", "Begin")
	git(t, filepath.Dir(first), "clone", "-q", first, second)
	return first, second
}

func options(root, out string) dist.Options {
	return dist.Options{
		Root: root, Package: "./cmd/tiny", Out: out, Extra: map[string]string{"etc": "conf"},
		Platforms: []dist.Platform{{OS: runtime.GOOS, Arch: runtime.GOARCH}, {OS: "darwin", Arch: "arm64"}},
		Generate: func(_ context.Context, program, dir string, epoch int64) error {
			if _, err := os.Stat(program); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "epoch"), fmt.Append(nil, epoch), 0o600)
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func build(t *testing.T, o dist.Options) []string {
	t.Helper()
	paths, err := dist.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestSameBytes builds one commit in two directories, with other settings.
func TestSameBytes(t *testing.T) {
	first, second := repository(t)
	one := build(t, options(first, filepath.Join(t.TempDir(), "out")))
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("GOAMD64", "v3")
	if err := os.Chmod(filepath.Join(second, "etc", "deep", "tiny.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	two := build(t, options(second, filepath.Join(t.TempDir(), "elsewhere")))
	if len(one) != 5 || len(two) != 5 {
		t.Fatalf("built %v and %v", one, two)
	}
	for i := range one {
		if filepath.Base(one[i]) != filepath.Base(two[i]) || testenv.ReadFile(t, one[i]) != testenv.ReadFile(t, two[i]) {
			t.Errorf("%s and %s differ", one[i], two[i])
		}
	}
	var sums string
	for _, path := range one[:4] {
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(testenv.ReadFile(t, path))), filepath.Base(path))
	}
	lines := slices.Sorted(strings.Lines(sums))
	got := slices.Sorted(strings.Lines(testenv.ReadFile(t, one[4])))
	if filepath.Base(one[4]) != dist.Checksums || !slices.Equal(got, lines) {
		t.Errorf("checksums\n%s, want\n%s", got, lines)
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	root, _ := repository(t)
	git(t, root, "tag", "v1.2.3")
	paths := build(t, options(root, filepath.Join(t.TempDir(), "out")))
	base := "tiny_1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH
	if filepath.Base(paths[0]) != base+".tar.gz" {
		t.Fatalf("built %v", paths)
	}
	epoch := git(t, root, "log", "-1", "--format=%ct")
	var names []string
	headers, contents := unpack(t, paths[0])
	for _, h := range headers {
		names = append(names, fmt.Sprintf("%s %o", h.Name, h.Mode))
		if h.Uid != 0 || h.Gid != 0 || fmt.Sprint(h.ModTime.Unix()) != epoch {
			t.Errorf("%+v, want the time %s", h, epoch)
		}
	}
	want := []string{base + "/conf/deep/tiny.conf 644", base + "/epoch 644", base + "/tiny 755"}
	if !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if got := string(contents[base+"/epoch"]); got != epoch {
		t.Errorf("files were generated for the time %s, want %s", got, epoch)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(contents[base+"/tiny"]))
	if bom := testenv.ReadFile(t, paths[2]); filepath.Base(paths[2]) != base+".cdx.json" || !strings.Contains(bom, `"content": "`+sum+`"`) {
		t.Errorf("%s is not of the program %s:\n%s", paths[2], sum, bom)
	}
	path := filepath.Join(t.TempDir(), "tiny")
	if err := os.WriteFile(path, contents[base+"/tiny"], 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Version, Commit, File string }
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	if said.Version != "v1.2.3" || said.Commit != git(t, root, "rev-parse", "HEAD") || strings.HasPrefix(said.File, "/") {
		t.Errorf("%+v", said)
	}
}

// unpack returns the contents of an archive.
func unpack(t *testing.T, path string) (headers []*tar.Header, contents map[string][]byte) {
	t.Helper()
	zip, err := gzip.NewReader(strings.NewReader(testenv.ReadFile(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	contents = make(map[string][]byte)
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
		if contents[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirtyList names the first of very many files and counts the others.
func TestDirtyList(t *testing.T) {
	t.Parallel()
	root, _ := repository(t)
	for i := range 25 {
		testenv.WriteFile(t, filepath.Join(root, fmt.Sprintf("new%02d", i)), "x")
	}
	_, err := dist.Build(t.Context(), options(root, filepath.Join(t.TempDir(), "out")))
	if text := fmt.Sprint(err); !strings.Contains(text, "new19\n  and 5 more\n") || strings.Contains(text, "new20") {
		t.Errorf("got %v", err)
	}
}

func TestDirty(t *testing.T) {
	t.Parallel()
	root, _ := repository(t)
	o := options(root, filepath.Join(t.TempDir(), "out"))
	o.Platforms, o.Generate = o.Platforms[:1], nil
	testenv.WriteFile(t, filepath.Join(root, "new"), "x")
	testenv.WriteFile(t, filepath.Join(root, "a", "lot", "more"), "x")
	testenv.WriteFile(t, filepath.Join(root, "etc", "deep", "tiny.conf"), "a = 2\n")
	git(t, root, "config", "status.showUntrackedFiles", "no")
	_, err := dist.Build(t.Context(), o)
	if !errors.Is(err, dist.ErrDirty) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"\n  changed    etc/deep/tiny.conf\n", "\n  untracked  a/\n", "\n  untracked  new\n", "-allow-dirty"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	o.AllowDirty = true
	if paths := build(t, o); !strings.Contains(paths[0], "-dirty_") {
		t.Errorf("built %v", paths)
	}
	testenv.WriteFile(t, filepath.Join(root, "cmd", "tiny", "main.go"), "package main\n\nfunc main() { nonsense() }\n")
	if _, err := dist.Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "undefined: nonsense") {
		t.Errorf("a program that does not compile: %v", err)
	}
	o.Root = t.TempDir()
	if _, err := dist.Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "git rev-parse HEAD") {
		t.Errorf("no repository: %v", err)
	}
}

func TestCheckGo(t *testing.T) {
	t.Parallel()
	for found, ok := range map[string]bool{
		dist.LeastGo: true, dist.LeastGo + " X:nocoverageredesign": true, "go1.99.0": true, "go1.100.1": true,
		"go1.26.0": false, "go1.26rc1": false, "go1.9.9": false, "devel go1.27-abcdef": false, "": false,
	} {
		if err := dist.CheckGo(found); (err == nil) != ok {
			t.Errorf("%q: %v", found, err)
		}
	}
}
