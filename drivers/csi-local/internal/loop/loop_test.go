package loop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func image(t *testing.T) string {
	t.Helper()
	testbin.RequireRoot(t, "loop devices")
	path := filepath.Join(t.TempDir(), "loop-test-"+filepath.Base(t.TempDir())+".img")
	check.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	t.Cleanup(func() {
		devices, err := Find(path)
		if err != nil {
			t.Error(err)
		}
		for _, dev := range devices {
			if err := dev.Detach(path); err != nil {
				t.Error(err)
			}
		}
	})
	return path
}

// expect fails the test unless the image is attached to n devices.
func expect(t *testing.T, path string, n int) []Device {
	t.Helper()
	devices, err := Find(path)
	if err != nil || len(devices) != n {
		t.Fatalf("attached to %v, %v, want %d", devices, err, n)
	}
	return devices
}

func TestAcquireFindsWhatIsThere(t *testing.T) {
	path := image(t)
	expect(t, path, 0)
	first, hold, err := Acquire(t.Context(), path, Options{})
	check.NoError(t, err)
	hold.Close()
	second, hold, err := Acquire(t.Context(), path, Options{})
	if err != nil || second != first {
		t.Fatalf("got %v and %v, %v", first, second, err)
	}
	hold.Close()
	expect(t, path, 1)
	reader, hold, err := Acquire(t.Context(), path, Options{ReadOnly: true})
	if err != nil || reader.Path == first.Path {
		t.Fatalf("got %v and %v, %v", first, reader, err)
	}
	hold.Close()
	for _, dev := range expect(t, path, 2) {
		for range 2 {
			if err := dev.Detach(path); err != nil {
				t.Error(err)
			}
		}
	}
	expect(t, path, 0)
}

// TestAutoClear checks that nothing is left after the last user, even if the device was attached permanently
// before.
func TestAutoClear(t *testing.T) {
	path := image(t)
	for range 2 {
		dev, hold, err := Acquire(t.Context(), path, Options{AutoClear: true})
		if err != nil || !dev.AutoClear {
			t.Fatalf("got %v, %v", dev, err)
		}
		expect(t, path, 1)
		hold.Close()
		expect(t, path, 0)
		if _, hold, err = Acquire(t.Context(), path, Options{}); err != nil {
			t.Fatal(err)
		}
		hold.Close()
	}
}

// TestAnotherFileOfTheSameName checks that a different file with the same name does not count as the image.
func TestAnotherFileOfTheSameName(t *testing.T) {
	path := image(t)
	dev, hold, err := Acquire(t.Context(), path, Options{})
	check.NoError(t, err)
	hold.Close()
	other := filepath.Join(t.TempDir(), filepath.Base(path))
	check.NoError(t, os.WriteFile(other, make([]byte, 1<<20), 0o600))
	expect(t, other, 0)
	if err := dev.Detach(other); err != nil {
		t.Error(err)
	}
	expect(t, path, 1)
}

func TestDeletedImageIsFound(t *testing.T) {
	path := image(t)
	_, hold, err := Acquire(t.Context(), path, Options{})
	check.NoError(t, err)
	hold.Close()
	check.NoError(t, os.Remove(path))
	expect(t, path, 1)
}

func TestResize(t *testing.T) {
	path := image(t)
	dev, hold, err := Acquire(t.Context(), path, Options{})
	check.NoError(t, err)
	hold.Close()
	check.NoError(t, os.Truncate(path, 4<<20))
	check.NoError(t, dev.Resize())
	if size, err := dev.Size(); err != nil || size != 4<<20 {
		t.Errorf("%d bytes, %v", size, err)
	}
}
