package storage_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/internal/inprocess"
	"github.com/pannier/pannier/sdk/storage"
)

// links is a plugin whose volumes are directories below the driver's endpoint. A workload gets a volume as a
// symbolic link; examples/plugins/dirs mounts them. It keeps nothing in memory, and every call may be repeated.
type links struct{}

func volumes(d storage.Driver) string { return strings.TrimPrefix(d.Endpoint, "unix://") }

func (links) Fingerprint(ctx context.Context, d storage.Driver, _ storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	_, err := os.Stat(volumes(d))
	f := storage.Fingerprint{
		Healthy: err == nil, Provider: "links", Version: "1.0.0",
		Node: &storage.NodeCapabilities{NodeID: "local"},
	}
	if err != nil {
		f.Message = err.Error()
	}
	if err := report(f); err != nil {
		return err
	}
	<-ctx.Done() // a real plugin checks its driver from time to time, and reports each change
	return ctx.Err()
}

func (links) Probe(_ context.Context, d storage.Driver, _ time.Duration) (bool, error) {
	_, err := os.Stat(volumes(d))
	return err == nil, nil
}

func (links) ValidateVolume(_ context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	if _, err := os.Stat(filepath.Join(volumes(d), req.Volume.ExternalID)); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return nil, nil
}

// There is nothing to attach or stage. The fingerprint has no such capability, so a host calls none of these four.

func (links) Attach(context.Context, storage.Driver, storage.AttachRequest) (map[string]string, error) {
	return nil, nil
}
func (links) Detach(context.Context, storage.Driver, storage.Volume, string) error  { return nil }
func (links) Stage(context.Context, storage.Driver, storage.StageRequest) error     { return nil }
func (links) Unstage(context.Context, storage.Driver, storage.Volume, string) error { return nil }

func (links) Publish(_ context.Context, d storage.Driver, req storage.PublishRequest) error {
	source := filepath.Join(volumes(d), req.Volume.ExternalID)
	if _, err := os.Stat(source); err != nil {
		return status.Errorf(codes.NotFound, "there is no volume %q", req.Volume.ExternalID)
	}
	if at, err := os.Readlink(req.TargetPath); err == nil && at == source {
		return nil // an earlier call did it
	}
	return os.Symlink(source, req.TargetPath)
}

func (links) Unpublish(_ context.Context, _ storage.Driver, _ storage.Volume, target string) error {
	if err := os.Remove(target); !os.IsNotExist(err) {
		return err
	}
	return nil
}

// A plugin's main is sdk.Main(info, storage.Plugin(links{})). Here it is served in the same process, and called as a
// host calls it.
func Example() {
	info := sdk.Info{Name: "links", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, storage.Plugin(links{}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	host, ctx := storage.NewClient(conn), context.Background()

	dir, err := os.MkdirTemp("", "links-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	driver := storage.Driver{ID: "shared", Endpoint: "unix://" + dir}
	notes := storage.Volume{Name: "notes", ExternalID: "notes"}
	request := storage.PublishRequest{Volume: notes, TargetPath: filepath.Join(dir, "target")}

	fmt.Println(host.Publish(ctx, driver, request))
	if err := os.Mkdir(filepath.Join(dir, "notes"), 0o750); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // a host repeats a call whose answer it has not received
		fmt.Println(host.Publish(ctx, driver, request))
	}
	fmt.Println(host.Unpublish(ctx, driver, notes, request.TargetPath))
	// Output:
	// rpc error: code = NotFound desc = there is no volume "notes"
	// <nil>
	// <nil>
	// <nil>
}
