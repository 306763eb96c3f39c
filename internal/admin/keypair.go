package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Files are the PEM files of a certificate and its key. Both empty: no TLS.
type Files struct{ Cert, Key string }

// keyPair is a certificate that is read again when its files change. While the
// files cannot be read, as in the middle of a change, the previous certificate
// stays in use.
type keyPair struct {
	files Files
	log   *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    [2]version // of the files in use, or of those that could not be used
}

// version shows whether a file has changed: rewritten, or replaced.
type version struct {
	size int64
	time time.Time
	info os.FileInfo
}

func (v version) same(w version) bool {
	if v.info == nil || w.info == nil || v.size != w.size {
		return false
	}
	return v.time.Equal(w.time) && os.SameFile(v.info, w.info)
}

func loadKeyPair(files Files, log *slog.Logger) (*keyPair, error) {
	k := &keyPair{files: files, log: log}
	versions, err := k.stat()
	if err != nil {
		return nil, err
	}

	k.read = versions
	k.current, err = k.load()
	return k, err
}

// stat returns the versions of the files.
func (k *keyPair) stat() (versions [2]version, err error) {
	for i, path := range []string{k.files.Cert, k.files.Key} {
		info, serr := os.Stat(path) // of the target of a link
		if serr != nil {
			err = errors.Join(err, fmt.Errorf("admin.tls: %w", serr))
			continue
		}

		versions[i] = version{info.Size(), info.ModTime(), info}
	}
	return versions, err
}

func (k *keyPair) load() (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		return nil, fmt.Errorf("admin.tls: %s and %s: %w", k.files.Cert, k.files.Key, err)
	}
	return &cert, nil
}

// get is tls.Config.GetCertificate. It checks the files in every handshake.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	versions, err := k.stat()
	if err != nil || versions[0].same(k.read[0]) && versions[1].same(k.read[1]) {
		return k.current, nil // files that are gone for a moment are being replaced
	}

	k.read = versions
	cert, err := k.load()
	if err != nil {
		k.log.Warn("admin certificate not reloaded", "err", err)
		return k.current, nil
	}

	k.current = cert
	k.log.Info("admin certificate reloaded", "cert_file", k.files.Cert)
	return k.current, nil
}
