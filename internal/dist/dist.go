// Package dist builds a release: a static binary per platform, packed with man pages,
// completions and example files, a bill of materials of each binary, and the checksums of
// all. Two runs on one commit, in any directory, write the same bytes.
package dist

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/version"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Platform is the platform of a binary.
type Platform struct{ OS, Arch string }

// Platforms are the released platforms.
func Platforms() []Platform {
	return []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
}

// LeastGo is the oldest Go that builds a release. Older patches have known faults in the
// standard library, which is linked into the program.
const LeastGo = "go1.26.8"

// CheckGo returns an error for a Go, such as runtime.Version returns, that is older than LeastGo.
func CheckGo(found string) error {
	release, _, _ := strings.Cut(found, " ") // experiments follow
	if version.Compare(release, LeastGo) < 0 {
		return fmt.Errorf("a release needs %s or newer, and this is %s: install a newer Go, or set GOTOOLCHAIN=%s", LeastGo, found, LeastGo)
	}
	return nil
}

// Checksums is the name of the file with the checksums, as sha256sum writes it.
const Checksums = "SHA256SUMS"

// Options configure a build.
type Options struct {
	// Root is the repository, a git work tree.
	Root string
	// Package is the package of the program, such as "./cmd/notifyd". Its last
	// element is the program's name.
	Package string
	// Out is the directory for the archives, created if it is missing. Archives of
	// an earlier run stay.
	Out string
	// Platforms to build for.
	Platforms []Platform
	// Extra maps files and directories below Root to their place in the
	// archives.
	Extra map[string]string
	// Generate, if set, creates more files in dir by running the program, which is a
	// build for this machine. epoch is the time of the commit, in seconds.
	Generate func(ctx context.Context, program, dir string, epoch int64) error
	// AllowDirty also builds uncommitted changes, and adds -dirty to the version.
	AllowDirty bool
	// Log reports progress.
	Log *slog.Logger
}

// ErrDirty is returned, with a list of the files, for a work tree with changes
// that are not committed.
var ErrDirty = errors.New("the work tree has changes that are not committed: the build could not be repeated")

// Build writes an archive and a bill of materials per platform, and the checksums
// of these, and returns the paths: archives, bills, checksums. It sets the program's
// variables main.version and main.commit. Go must not be older than LeastGo.
func Build(ctx context.Context, o Options) (paths []string, err error) {
	if err := CheckGo(runtime.Version()); err != nil {
		return nil, err
	}

	commit, err := readCommit(ctx, o.Root)
	if err != nil {
		return nil, err
	}

	if len(commit.changes) > 0 {
		if !o.AllowDirty {
			return nil, fmt.Errorf("%w:%s", ErrDirty, listed(commit.changes))
		}
		commit.version += "-dirty"
	}

	if err := os.MkdirAll(o.Out, 0o755); err != nil { //nolint:gosec // archives are public
		return nil, err
	}

	work, err := os.MkdirTemp("", "notifyd-dist-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	files, err := o.collect(ctx, commit, work)
	if err != nil {
		return nil, err
	}

	var boms []string
	for _, p := range o.Platforms {
		path, bom, err := o.pack(ctx, commit, p, work, files)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", p.OS, p.Arch, err)
		}
		paths = append(paths, path)
		boms = append(boms, bom)
	}

	paths = append(paths, boms...)

	sums := filepath.Join(o.Out, Checksums)
	if err := writeChecksums(sums, paths); err != nil {
		return nil, err
	}
	return append(paths, sums), nil
}

func (o Options) name() string { return filepath.Base(o.Package) }

// Extras returns the extra files, by place. It writes pages below dir whose links would lead to files that the archive
// lacks, or has in another place.
func (o Options) Extras(dir string) (map[string]string, error) {
	files := make(map[string]string)
	for from, to := range o.Extra {
		if err := addTree(files, filepath.Join(o.Root, from), to); err != nil {
			return nil, err
		}
	}

	pages, err := relinked(o.Root, files)
	if err != nil {
		return nil, fmt.Errorf("links of pages: %w", err)
	}
	for place, text := range pages {
		path := filepath.Join(dir, filepath.FromSlash(place))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		files[place] = path
	}

	return files, nil
}

// collect returns the common files of all archives, by place.
func (o Options) collect(ctx context.Context, c commit, work string) (map[string]string, error) {
	files, err := o.Extras(filepath.Join(work, "pages"))
	if err != nil || o.Generate == nil {
		return files, err
	}

	o.Log.InfoContext(ctx, "building for this machine, to write man pages and completions")
	program := filepath.Join(work, "here", o.name())
	if err := o.compile(ctx, c, Platform{}, program); err != nil {
		return nil, err
	}

	dir := filepath.Join(work, "generated")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := o.Generate(ctx, program, dir, c.time.Unix()); err != nil {
		return nil, fmt.Errorf("generate files: %w", err)
	}
	return files, addTree(files, dir, "")
}

// pack builds for a platform and writes its archive and its bill of materials.
func (o Options) pack(ctx context.Context, c commit, p Platform, work string, files map[string]string) (path, bom string, err error) {
	o.Log.InfoContext(ctx, "building", "os", p.OS, "arch", p.Arch, "version", c.version)
	program := filepath.Join(work, p.OS+"_"+p.Arch, o.name())
	if err := o.compile(ctx, c, p, program); err != nil {
		return "", "", err
	}

	base := fmt.Sprintf("%s_%s_%s_%s", o.name(), strings.TrimPrefix(c.version, "v"), p.OS, p.Arch)
	all := maps.Clone(files)
	all[o.name()] = program

	path = filepath.Join(o.Out, base+".tar.gz")
	bom = filepath.Join(o.Out, base+".cdx.json")
	return path, bom, errors.Join(writeArchive(path, base, c.time, all), writeBOM(bom, program, c))
}

// compile builds the program; an empty platform is this machine's.
func (o Options) compile(ctx context.Context, c commit, p Platform, program string) error {
	// -buildvcs needs a full clone; the version is set instead. -trimpath keeps the
	// directory out.
	variables := fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", c.version, c.hash)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", variables, "-o", program, o.Package)

	cmd.Dir = o.Root
	// The environment may set each of these.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=",
		"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off")

	if p != (Platform{}) {
		cmd.Env = append(cmd.Env, "GOOS="+p.OS, "GOARCH="+p.Arch)
	}

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// commit is the commit to build.
type commit struct {
	hash    string
	time    time.Time
	version string
	changes []string // uncommitted changes, as "git status --porcelain" prints them
}

// listed returns a line per change, up to a limit, and the remedies.
func listed(changes []string) string {
	const most = 20
	var text strings.Builder
	for _, change := range changes[:min(most, len(changes))] {
		kind := "changed"
		if strings.HasPrefix(change, "??") {
			kind = "untracked"
		}
		fmt.Fprintf(&text, "\n  %-9s  %s", kind, change[3:])
	}

	if more := len(changes) - most; more > 0 {
		fmt.Fprintf(&text, "\n  and %d more", more)
	}

	text.WriteString("\ncommit, remove or ignore them, or build them with -allow-dirty, which the version shows")
	return text.String()
}

func readCommit(ctx context.Context, root string) (c commit, err error) {
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		out, gitErr := cmd.Output()
		if gitErr != nil && err == nil {
			err = fmt.Errorf("git %s: %w", strings.Join(args, " "), gitErr)
		}
		return strings.TrimRight(string(out), "\n")
	}

	c.hash = git("rev-parse", "HEAD")
	seconds := git("log", "-1", "--format=%ct")

	// Git may be configured to hide untracked files.
	for line := range strings.Lines(git("status", "--porcelain", "--untracked-files=normal")) {
		c.changes = append(c.changes, strings.TrimRight(line, "\n"))
	}

	tag := git("tag", "--points-at", "HEAD", "--list", "v*", "--sort=-v:refname")
	if err != nil {
		return c, err
	}

	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return c, fmt.Errorf("the time of commit %s: %w", c.hash, err)
	}

	c.time = time.Unix(unix, 0).UTC()
	c.version, _, _ = strings.Cut(tag, "\n")
	if c.version == "" {
		// As Go names a commit without a tag.
		c.version = "v0.0.0-" + c.time.Format("20060102150405") + "-" + c.hash[:12]
	}
	return c, nil
}

// addTree adds a file, or all files below a directory, to files.
func addTree(files map[string]string, from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(filepath.Join(to, rel))] = path
		return nil
	})
}

func writeChecksums(path string, files []string) error {
	var lines []string
	for _, f := range files {
		sum, err := checksum(f)
		if err != nil {
			return err
		}
		lines = append(lines, sum+"  "+filepath.Base(f)+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644) //nolint:gosec // the file is public
}

func checksum(path string) (sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
