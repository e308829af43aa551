package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/storage"
)

var storageKind = &kind{
	service: storagev1.File_pannier_plugin_storage_v1_storage_proto.Services().ByName("StorageService"),
	ask:     askStorage,
	methods: storageMethods,
	missing: func(cfg *Config) string {
		if cfg.Driver.Endpoint == "" {
			return "needs a CSI driver (-driver ENDPOINT, Config.Driver)"
		}
		return ""
	},
	job: storageJob,
	refusals: []refusal{{
		"to validate a volume that does not exist", codes.NotFound,
		func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error {
			return validateGone(ctx, conn, r.cfg.Driver)
		},
	}},
	final: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error {
		return validateGone(ctx, conn, at.driver)
	},
	stream: func(ctx context.Context, conn grpc.ClientConnInterface, at backend, opened func()) error {
		opts := fingerprintWithin(at.patience)
		opts.Interval /= 2 // distinguishes it from ask in the kit's own tests
		return storage.NewClient(conn).Fingerprint(ctx, at.driver, opts,
			func(storage.Fingerprint) error { opened(); return nil })
	},
}

// fingerprintWithin makes an unreachable driver be reported after d.
func fingerprintWithin(d time.Duration) storage.FingerprintOptions {
	return storage.FingerprintOptions{Interval: time.Hour, ProbeTimeout: d}
}

// plain is a capability that every driver has.
var plain = storage.Capability{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem}

func validateGone(ctx context.Context, conn grpc.ClientConnInterface, d storage.Driver) error {
	v := storage.Volume{Name: "gone", ExternalID: "no-such-volume", Capability: plain}
	_, err := storage.NewClient(conn).ValidateVolume(ctx, d,
		storage.ValidateRequest{Volume: v, Capabilities: []storage.Capability{plain}})
	return err
}

var errEnough = errors.New("enough")

func fingerprint(ctx context.Context, conn grpc.ClientConnInterface, at backend) (fp storage.Fingerprint, err error) {
	err = storage.NewClient(conn).Fingerprint(ctx, at.driver, fingerprintWithin(at.patience),
		func(f storage.Fingerprint) error {
			fp = f
			return errEnough
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return fp, err
}

func askStorage(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error) {
	fp, err := fingerprint(ctx, conn, at)
	if err != nil {
		return "", err
	}
	fp.Message = "" // for people: it may contain a time
	text, err := json.Marshal(fp)
	return string(text), err
}

// markedVolume returns a volume whose secrets and mount flags are markers, for the kit's own backends.
func markedVolume(at backend, name string) storage.Volume {
	secret := at.marker
	return storage.Volume{
		Name: name, ExternalID: name, Secrets: map[string]string{"password": secret + "-volume"},
		Capability: storage.Capability{
			AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem,
			MountFlags: []string{"password=" + secret + "-flag"},
		},
	}
}

var storageMethods = []method{
	{"ValidateVolume", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		v := markedVolume(at, name)
		_, err := storage.NewClient(conn).ValidateVolume(ctx, at.driver,
			storage.ValidateRequest{Volume: v, Capabilities: []storage.Capability{v.Capability}})
		return err
	}},
	{"Attach", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		_, err := storage.NewClient(conn).Attach(ctx, at.driver,
			storage.AttachRequest{Volume: markedVolume(at, name+"-attach"), NodeID: "node"})
		return err
	}},
	{"Detach", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Detach(ctx, at.driver, markedVolume(at, name+"-detach"), "node")
	}},
	{"Stage", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		req := storage.StageRequest{Volume: markedVolume(at, name+"-stage"), StagingPath: at.path("staging")}
		return storage.NewClient(conn).Stage(ctx, at.driver, req)
	}},
	{"Unstage", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Unstage(ctx, at.driver, markedVolume(at, name+"-unstage"), at.path("staging"))
	}},
	{"Publish", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		req := storage.PublishRequest{
			Volume: markedVolume(at, name+"-publish"), StagingPath: at.path("staging"),
			TargetPath: at.path("target"),
		}
		return storage.NewClient(conn).Publish(ctx, at.driver, req)
	}},
	{"Unpublish", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
		return storage.NewClient(conn).Unpublish(ctx, at.driver, markedVolume(at, name+"-unpublish"), at.path("target"))
	}},
}

// volumeSize is the size that the kit requests, in bytes: small, but enough for ext4 and xfs.
const volumeSize = 320 << 20

// volumeJob takes one volume through the driver.
type volumeJob struct {
	driver  storage.Driver
	volume  storage.Volume
	node    string            // the driver's id for this node
	publish map[string]string // the publish context
	staging string            // empty if the driver does not stage
	target  string
}

func storageJob(ctx context.Context, r *run, conn grpc.ClientConnInterface, name string) ([]step, error) {
	fp, err := fingerprint(ctx, conn, r.real())
	switch {
	case err != nil:
		return nil, fmt.Errorf("fingerprint: %w", err)
	case !fp.Healthy:
		return nil, fmt.Errorf("the driver is unhealthy: %s", fp.Message)
	case fp.Node == nil:
		return nil, skip("needs a CSI driver with a node service")
	}
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	j := &volumeJob{driver: r.cfg.Driver, volume: r.cfg.Volume, node: fp.Node.NodeID, target: filepath.Join(dir, "target")}
	creates := j.volume.ExternalID == ""
	if creates {
		if fp.Controller == nil || !fp.Controller.CreateDelete {
			return nil, skip("needs a volume (Config.Volume): the driver cannot create one")
		}
		j.volume = storage.Volume{Name: name, Capability: plain, Secrets: map[string]string{"password": r.secret + "-volume"}}
	}
	var steps []step
	add := func(on bool, s step) {
		if on {
			steps = append(steps, s)
		}
	}
	attaches := fp.Controller != nil && fp.Controller.AttachDetach
	if fp.Node.StageUnstage {
		j.staging = filepath.Join(dir, "staging")
		if err := os.Mkdir(j.staging, 0o700); err != nil {
			return nil, err
		}
	}
	add(creates, step{name: "Create", base: true, do: j.create})
	add(true, step{name: "ValidateVolume", do: j.validate})
	add(attaches, step{name: "Attach", do: j.attach})
	add(j.staging != "", step{name: "Stage", do: j.stage})
	add(true, step{name: "Publish", do: j.mount})
	add(true, step{name: "Unpublish", undo: true, do: j.unmount})
	add(j.staging != "", step{name: "Unstage", undo: true, do: j.unstage})
	add(attaches, step{name: "Detach", undo: true, do: j.detach})
	add(creates, step{name: "Delete", undo: true, do: j.delete})
	return steps, nil
}

func (j *volumeJob) create(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	res, err := storage.NewClient(conn).Create(ctx, j.driver, storage.CreateRequest{
		Name: j.volume.Name, CapacityMin: volumeSize, Capabilities: []storage.Capability{plain}, Secrets: j.volume.Secrets,
	})
	if err == nil && res.ExternalID == "" {
		err = errors.New("it returns no external id")
	}
	if err == nil {
		j.volume.ExternalID, j.volume.Context = res.ExternalID, res.Context
	}
	return res.ExternalID, err
}

func (j *volumeJob) validate(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	_, err := storage.NewClient(conn).ValidateVolume(ctx, j.driver,
		storage.ValidateRequest{Volume: j.volume, Capabilities: []storage.Capability{j.volume.Capability}})
	return "", err
}

func (j *volumeJob) attach(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	publish, err := storage.NewClient(conn).Attach(ctx, j.driver, storage.AttachRequest{Volume: j.volume, NodeID: j.node})
	if err == nil {
		j.publish = publish
	}
	return fmt.Sprint(publish), err
}

func (j *volumeJob) stage(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	return "", storage.NewClient(conn).Stage(ctx, j.driver,
		storage.StageRequest{Volume: j.volume, PublishContext: j.publish, StagingPath: j.staging})
}

func (j *volumeJob) mount(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	err := storage.NewClient(conn).Publish(ctx, j.driver, storage.PublishRequest{
		Volume: j.volume, PublishContext: j.publish, StagingPath: j.staging, TargetPath: j.target,
	})
	if err != nil {
		return "", err
	}
	mounts, err := mountsBelow(j.target)
	if err == nil && len(mounts) == 0 {
		err = errors.New("it succeeded, and nothing is mounted at the target")
	}
	return fmt.Sprint(mounts), err
}

func (j *volumeJob) unmount(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	if err := storage.NewClient(conn).Unpublish(ctx, j.driver, j.volume, j.target); err != nil {
		return "", err
	}
	mounts, err := mountsBelow(j.target)
	if err == nil && len(mounts) > 0 {
		err = errors.New("it succeeded, and the target is still mounted")
	}
	return "", err
}

func (j *volumeJob) unstage(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	return "", storage.NewClient(conn).Unstage(ctx, j.driver, j.volume, j.staging)
}

func (j *volumeJob) detach(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	return "", storage.NewClient(conn).Detach(ctx, j.driver, j.volume, j.node)
}

func (j *volumeJob) delete(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	return "", storage.NewClient(conn).Delete(ctx, j.driver, j.volume)
}

// mountsBelow returns the mount points below a directory.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	var points []string
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
