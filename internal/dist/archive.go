package dist

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// writeArchive packs files, which maps places to paths, below the directory base.
// Order, times, owners and modes depend on the arguments alone.
func writeArchive(path, base string, at time.Time, files map[string]string) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path) // an incomplete archive
		}
	}()

	zip, err := gzip.NewWriterLevel(out, gzip.BestCompression) // without a name or a time in its header
	if err != nil {
		return err
	}

	t := tar.NewWriter(zip)

	for _, place := range slices.Sorted(maps.Keys(files)) {
		if err := addFile(t, base+"/"+place, files[place], at); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), zip.Close())
}

func addFile(t *tar.Writer, name, path string, at time.Time) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing was written

	info, err := f.Stat()
	if err != nil {
		return err
	}

	mode := int64(0o644) // the umask must not matter
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Size:     info.Size(),
		Mode:     mode,
		ModTime:  at,
		Uname:    "root",
		Gname:    "root",
	}
	if err := t.WriteHeader(header); err != nil {
		return err
	}

	_, err = io.Copy(t, f)
	return err
}
