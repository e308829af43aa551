package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// errNoBusybox: there is nothing to make images of.
var errNoBusybox = errors.New("needs busybox (Debian: busybox-static)")

// Image is MakeImage for a test, which is skipped without busybox.
func (d *Daemon) Image(t testing.TB, image, config string, programs ...string) {
	t.Helper()
	err := d.MakeImage(image, config, programs...)
	if errors.Is(err, errNoBusybox) {
		t.Skipf("%v; not covered: containers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// MakeImage makes an image with busybox as its shell, and with programs of this host and their libraries in its /bin;
// config is a line of a Dockerfile, such as its command. No registry is used.
func (d *Daemon) MakeImage(image, config string, programs ...string) error {
	busybox, err := exec.LookPath("busybox")
	if err == nil {
		err = exec.Command(busybox, "ls", "/").Run()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoBusybox, err)
	}
	content, err := archive(append(programs, busybox))
	if err != nil {
		return err
	}
	cmd := d.Command("import", "--change", config, "-", image)
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker import: %w\n%s", err, out)
	}
	return nil
}

// archive returns a tar of programs and their libraries, and of names of busybox.
func archive(programs []string) ([]byte, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	added := map[string]bool{}
	add := func(path, at string) error {
		if added[at] {
			return nil
		}
		added[at] = true
		data, err := os.ReadFile(path)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: at, Mode: 0o755, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	for _, program := range programs {
		if err := add(program, "/bin/"+filepath.Base(program)); err != nil {
			return nil, err
		}
		for _, library := range libraries(program) {
			if err := add(library, library); err != nil {
				return nil, err
			}
		}
	}
	for _, applet := range []string{
		"sh", "cat", "date", "dd", "head", "httpd", "sleep", "test", "touch", "mount", "wget",
	} {
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: "/bin/" + applet,
			Linkname: "busybox",
		}); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return content.Bytes(), err
}

// libraries returns the libraries of a program; none if it is static.
func libraries(program string) (paths []string) {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil
	}
	for field := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(field, "/") {
			paths = append(paths, field)
		}
	}
	return paths
}
