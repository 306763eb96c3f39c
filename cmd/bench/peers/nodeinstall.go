package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// nodeFiles are the packages of the peers that are written for Node.js, with versions and
// checksums, and the programs that drive them.
//
//go:embed node/*.mjs node/package.json node/package-lock.json node/.npmrc
var nodeFiles embed.FS

// errNoNode reports that this machine cannot run peers on Node.js.
var errNoNode = errors.New("no Node.js peers here")

// The oldest Node.js that graphile-worker 0.18 and pg-boss 12.38 support.
const (
	nodeMajor = 22
	nodeMinor = 18
)

// node is an installation of the Node.js peers.
type node struct {
	dir     string // has node_modules and the programs
	program string
	version string
}

// installNode installs the packages with npm below .cache of the checkout, unless they are there.
// One of them is Node.js itself. The error wraps [errNoNode] if this machine lacks npm, a registry,
// or a Node.js for its processor.
func installNode(ctx context.Context, log io.Writer) (node, error) {
	cache, err := checkoutCache()
	if err != nil {
		return node{}, err
	}
	n := node{dir: filepath.Join(cache, "peers")}
	if !n.complete() {
		if err := n.install(ctx, cache, log); err != nil {
			return node{}, err
		}
	}
	if err := writeFiles(n.dir); err != nil {
		return node{}, err
	}
	return n, n.findProgram(ctx)
}

// checkoutCache returns the directory .cache of the checkout around the working directory.
func checkoutCache() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "bench", "peers", "go.mod")); err == nil {
			return filepath.Join(dir, ".cache"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("run it in a checkout of notifyd")
		}
		dir = parent
	}
}

// complete reports whether all packages of the lock file are installed.
func (n *node) complete() bool {
	want, err := nodeFiles.ReadFile("node/package-lock.json")
	if err != nil {
		return false
	}
	have, err := os.ReadFile(filepath.Join(n.dir, "package-lock.json"))
	if err != nil || string(have) != string(want) {
		return false
	}
	_, err = os.Stat(filepath.Join(n.dir, "node_modules", "pg-boss", "package.json"))
	return err == nil
}

// install installs into a directory with a temporary name, and renames it: an interrupted installation must not look
// complete.
func (n *node) install(ctx context.Context, cache string, log io.Writer) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("%w: install npm, which fetches the rest", errNoNode)
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return err
	}
	part, err := os.MkdirTemp(cache, "peers.part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part) //nolint:errcheck // leftovers are below .cache
	if err := writeFiles(part); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(log, "fetching graphile-worker, pg-boss and Node.js with npm into %s\n", n.dir)
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: npm ci: %w: %s", errNoNode, err, lastLines(string(out)))
	}
	if err := os.RemoveAll(n.dir); err != nil {
		return err
	}
	return os.Rename(part, n.dir)
}

func writeFiles(dir string) error {
	entries, err := fs.ReadDir(nodeFiles, "node")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		text, err := nodeFiles.ReadFile("node/" + entry.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, entry.Name()), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findProgram finds the Node.js of the packages, or one in PATH that is new enough.
func (n *node) findProgram(ctx context.Context) error {
	private, _ := filepath.Glob(filepath.Join(n.dir, "node_modules", "node-*", "bin", "node")) // only this platform's is installed
	for _, program := range append(private, "node") {
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		version := strings.TrimSpace(string(out))
		if err == nil && newEnough(version) {
			n.program, n.version = program, version
			return nil
		}
	}
	return fmt.Errorf("%w: npm has no Node.js for %s on %s, and there is none from version %d.%d on in the path",
		errNoNode, runtime.GOOS, runtime.GOARCH, nodeMajor, nodeMinor)
}

// newEnough parses the output of node --version.
func newEnough(version string) bool {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	minor, minorErr := strconv.Atoi(parts[1])
	return err == nil && minorErr == nil && (major > nodeMajor || major == nodeMajor && minor >= nodeMinor)
}

// packageVersion returns the installed version of a package.
func (n *node) packageVersion(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(n.dir, "node_modules", name, "package.json"))
	if err != nil {
		return "", err
	}
	var p struct {
		Version string `json:"version"`
	}
	return p.Version, json.Unmarshal(text, &p)
}

// lastLines returns the end of a program's output.
func lastLines(text string) string {
	const most = 2000
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-most):]
}
