package docker

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Image makes an image with busybox as its shell, and with programs of this host and their libraries in its /bin;
// config is a line of a Dockerfile, such as its command. No registry is used.
func (d *Daemon) Image(t testing.TB, image, config string, programs ...string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err == nil {
		err = exec.Command(busybox, "ls", "/").Run()
	}
	if err != nil {
		t.Skipf("needs busybox (Debian: busybox-static); not covered: containers: %v", err)
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	var added []string
	add := func(path, at string) {
		if slices.Contains(added, at) {
			return
		}
		added = append(added, at)
		data, err := os.ReadFile(path)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: at, Mode: 0o755, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range append(programs, busybox) {
		add(program, "/bin/"+filepath.Base(program))
		for _, library := range libraries(program) {
			add(library, library)
		}
	}
	for _, applet := range []string{"sh", "cat", "dd", "head", "sleep", "test", "touch", "mount"} {
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: "/bin/" + applet,
			Linkname: "busybox",
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := d.Command("import", "--change", config, "-", image)
	cmd.Stdin = &content
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v\n%s", err, out)
	}
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
