package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/plugintest"
	"github.com/pannier/pannier/sdk/storage"
)

// serve returns the host's side of the plugin and a driver with an empty directory.
func serve(t *testing.T) (storage.Client, storage.Driver) {
	t.Helper()
	p := plugintest.Serve(t, storage.Plugin(&dirs{}))
	if err := p.Configure(t.Context(), `{"mode":"0750"}`); err != nil {
		t.Fatal(err)
	}
	return storage.NewClient(p.Conn), storage.Driver{ID: "test", Endpoint: "unix://" + t.TempDir()}
}

func TestConfigurationNamesTheWrongKey(t *testing.T) {
	p := plugintest.Serve(t, storage.Plugin(&dirs{}))
	for config, want := range map[string]string{
		`{"mode":"rwx"}`: "mode", `{"mdoe":"0755"}`: "mdoe",
		`{"root":"srv"}`: "root", `{"root":"/srv/../etc"}`: "root",
		`[]`: "configuration",
	} {
		err := p.Configure(t.Context(), config)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestTheDriverThatItBrings(t *testing.T) {
	p := plugintest.Serve(t, storage.Plugin(&dirs{}))
	client := storage.NewClient(p.Conn)
	if all, err := client.Drivers(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("without a root: %v, %v", all, err)
	}
	if err := p.Configure(t.Context(), `{"root":"/srv/dirs"}`); err != nil {
		t.Fatal(err)
	}
	all, err := client.Drivers(t.Context())
	if err != nil || len(all) != 1 || all[0] != (storage.Driver{ID: "dirs", Endpoint: "/srv/dirs"}) {
		t.Errorf("%v, %v", all, err)
	}
}

func TestVolumesComeAndGo(t *testing.T) {
	client, d := serve(t)
	ctx := t.Context()
	for range 2 { // every call may be repeated
		res, err := client.Create(ctx, d, storage.CreateRequest{Name: "v"})
		if err != nil || res.ExternalID != "v" {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if info, err := os.Stat(filepath.Join(root(d), "v")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := client.Create(ctx, d, storage.CreateRequest{Name: "w"}); err != nil {
		t.Fatal(err)
	}
	first, err := client.List(ctx, d, storage.Page{Max: 1})
	if err != nil || len(first.Volumes) != 1 || first.Next == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := client.List(ctx, d, storage.Page{Max: 1, Token: first.Next})
	if err != nil || len(second.Volumes) != 1 || second.Volumes[0].ExternalID != "w" || second.Next != "" {
		t.Fatalf("%+v, %v", second, err)
	}
	stats, err := client.VolumeStats(ctx, d, storage.StatsRequest{Volume: storage.Volume{ExternalID: "v"}})
	if err != nil || len(stats.Usage) != 2 || stats.Usage[0].Total <= 0 {
		t.Errorf("%+v, %v", stats, err)
	}
	for range 2 {
		if err := client.Delete(ctx, d, storage.Volume{ExternalID: "v"}); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.VolumeStats(ctx, d,
		storage.StatsRequest{Volume: storage.Volume{ExternalID: "v"}}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestNamesStayBelowTheRoot(t *testing.T) {
	client, d := serve(t)
	for _, name := range []string{"", ".", "..", "../x", "/etc"} {
		if err := client.Delete(t.Context(), d, storage.Volume{ExternalID: name}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestWhatAFolderCannotDo(t *testing.T) {
	client, d := serve(t)
	for name, c := range map[string]storage.Capability{
		"block":      {AttachmentMode: storage.BlockDevice, AccessMode: storage.SingleNodeWriter},
		"many nodes": {AttachmentMode: storage.FileSystem, AccessMode: storage.MultiNodeMultiWriter},
	} {
		_, err := client.Create(t.Context(), d, storage.CreateRequest{Name: "v", Capabilities: []storage.Capability{c}})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFingerprintFollowsTheRoot(t *testing.T) {
	client, d := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := errors.New("seen enough")
	var seen []bool
	err := client.Fingerprint(ctx, d, storage.FingerprintOptions{Interval: time.Millisecond},
		func(f storage.Fingerprint) error {
			if f.Node == nil || f.Node.NodeID == "" || !f.Healthy && !strings.Contains(f.Message, root(d)) {
				t.Errorf("%+v", f)
			}
			seen = append(seen, f.Healthy)
			if len(seen) == 2 {
				return done
			}
			return os.Remove(root(d))
		})
	if !errors.Is(err, done) || !seen[0] || seen[1] {
		t.Errorf("%v, %v", seen, err)
	}
}

func TestPublishedAndTakenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root; not covered: mounts")
	}
	client, d := serve(t)
	ctx := t.Context()
	if _, err := client.Create(ctx, d, storage.CreateRequest{Name: "v"}); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "target")
	v := storage.Volume{
		ExternalID: "v",
		Capability: storage.Capability{AttachmentMode: storage.FileSystem, AccessMode: storage.SingleNodeWriter},
	}
	t.Cleanup(func() { _ = unbind(target) })
	for range 2 {
		if err := client.Publish(ctx, d, storage.PublishRequest{Volume: v, TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := client.Unpublish(ctx, d, v, target); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("the target is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root(d), "v", "file")); err != nil {
		t.Errorf("read what was written: %v", err)
	}
	if err := client.Publish(ctx, d, storage.PublishRequest{Volume: v, TargetPath: target, ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "other"), nil, 0o600); err == nil {
		t.Error("written to a volume that is read-only")
	}
	if err := client.Publish(ctx, d,
		storage.PublishRequest{
			Volume:     storage.Volume{ExternalID: "x"},
			TargetPath: target,
		}); status.Code(err) != codes.NotFound {
		t.Errorf("a volume that is not there: %v", err)
	}
}
