//go:build testall

package main

import (
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/dist"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const root = "../../../.."

// program has the commands that a build runs, and compiles quickly.
const program = `package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if os.Args[1] != "man" {
		fmt.Println("complete", os.Args)
		return
	}
	if err := os.MkdirAll(os.Args[2], 0o700); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(os.Args[2], "notifyd.1"), []byte(".TH NOTIFYD 1"), 0o600); err != nil {
		panic(err)
	}
}
`

// pack creates the archive of a release in out: the files of this repository,
// with the program above.
func pack(t *testing.T, out string) {
	t.Helper()
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/notifyd\n\ngo 1.26\n")
	write("cmd/notifyd/main.go", program)
	for from := range extra() {
		err := filepath.WalkDir(filepath.Join(root, from), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil {
				name, _ := filepath.Rel(root, path)
				write(name, string(text))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	shell(t, dir, "git init -q && git add . && git -c user.name=Ann -c user.email=ann@example.com -c commit.gpgsign=false commit -q -m Begin")
	_, err := dist.Build(t.Context(), dist.Options{
		Root: dir, Package: "./cmd/notifyd", Out: out, Platforms: []dist.Platform{{OS: "linux", Arch: "amd64"}},
		Extra: extra(), Generate: generate, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func shell(t *testing.T, dir, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", command)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// TestDeployArchive runs the commands of docs/deploy.md for an archive, below a
// directory in place of the root of the file system.
func TestDeployArchive(t *testing.T) {
	t.Parallel()
	sysusers := testenv.Program(t, "systemd-sysusers")
	page, err := os.ReadFile(root + "/docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pack(t, dir)
	for _, d := range []string{"usr/local/bin", "etc/sysusers.d", "etc/systemd/system"} { // every system has them
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	here := strings.NewReplacer("sudo systemd-sysusers", sysusers+" --dry-run --root="+dir, "sudo ", "", " /usr/", " "+dir+"/usr/", " /etc/", " "+dir+"/etc/")
	ran := 0
	for _, line := range regexp.MustCompile(`(?m)^(?:sha256sum|tar|sudo install) .*(?:SHA256SUMS|notifyd_\*).*$`).FindAllString(string(page), -1) {
		shell(t, dir, here.Replace(line))
		ran++
	}
	if ran != 7 {
		t.Errorf("%d commands were run", ran)
	}
	for _, path := range []string{
		"usr/local/bin/notifyd", "usr/local/share/man/man1/notifyd.1", "usr/share/bash-completion/completions/notifyd",
		"etc/sysusers.d/notifyd.conf", "etc/systemd/system/notifyd.service",
	} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Size() == 0 {
			t.Errorf("%s was not installed: %v", path, err)
		}
	}
}
