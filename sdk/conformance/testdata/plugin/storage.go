package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
)

// volumes is a storage plugin. A volume is a file in STATE; a published one is a tmpfs.
type volumes struct{ *plugin }

func (v *volumes) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error) error {
	v.mu.Lock()
	answer := v.answer
	v.busy++
	if v.mode == "busy" && v.busy > 1 {
		answer = "too busy"
	}
	v.mu.Unlock()
	time.Sleep(5 * time.Millisecond)
	fp := storage.Fingerprint{Provider: answer, Message: time.Now().String()}
	if v.reach(ctx, d.Endpoint, "fingerprint", "") == nil {
		fp.Healthy = true
		fp.Controller = &storage.ControllerCapabilities{CreateDelete: true, AttachDetach: true}
		fp.Node = &storage.NodeCapabilities{NodeID: "n", StageUnstage: true}
	}
	err := report(fp)
	v.mu.Lock()
	v.busy--
	v.mu.Unlock()
	if err != nil {
		return err
	}
	if v.mode == "endless" && opts.Interval == 30*time.Minute {
		select {}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (v *volumes) Probe(context.Context, storage.Driver, time.Duration) (bool, error) {
	return true, nil
}

// call makes the part that all calls on a volume have in common.
func (v *volumes) call(ctx context.Context, d storage.Driver, what string, vol storage.Volume) error {
	if vol.Name == "" {
		switch v.mode {
		case "panics":
			panic("no name")
		case "dies":
			os.Exit(9)
		}
		return status.Error(codes.InvalidArgument, "no volume")
	}
	secret := vol.Secrets["password"]
	if what == "stage" {
		switch v.mode {
		case "logs":
			if calls(vol.Name) {
				sdk.Logger().Trace("stage", "secrets", vol.Secrets)
			}
		case "shows":
			cmd := exec.Command("sleep", "5")
			cmd.Env = append(os.Environ(), "PASSWORD="+secret)
			if err := cmd.Start(); err != nil {
				return err
			}
			v.mu.Lock()
			v.childs = append(v.childs, cmd)
			v.mu.Unlock()
		}
	}
	if err := v.reach(ctx, d.Endpoint, vol.Name+"."+what, secret); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mode == "once" {
		if v.seen[what+vol.Name] {
			return status.Error(codes.AlreadyExists, "it is done")
		}
		v.seen[what+vol.Name] = true
	}
	if v.mode == "jealous" {
		if pid, err := os.ReadFile(v.state + "/" + vol.Name + ".owner"); err == nil &&
			string(pid) != strconv.Itoa(os.Getpid()) && running(string(pid)) {
			return status.Error(codes.FailedPrecondition, "another process has the volume")
		}
		return os.WriteFile(v.state+"/"+vol.Name+".owner", []byte(strconv.Itoa(os.Getpid())), 0o600)
	}
	return nil
}

func running(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func (v *volumes) Create(ctx context.Context, d storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error) {
	if err := v.call(ctx, d, "create", storage.Volume{Name: req.Name, Secrets: req.Secrets}); err != nil {
		return storage.CreateResponse{}, err
	}
	return storage.CreateResponse{ExternalID: "ext-" + req.Name}, v.done(req.Name)
}

func (v *volumes) Delete(ctx context.Context, d storage.Driver, vol storage.Volume) error {
	err := v.call(ctx, d, "delete", vol)
	if err == nil {
		v.gone(vol.Name)
	}
	return err
}

func (v *volumes) List(context.Context, storage.Driver, storage.Page) (storage.ListResponse, error) {
	return storage.ListResponse{}, nil
}

func (v *volumes) ValidateVolume(ctx context.Context, d storage.Driver, req storage.ValidateRequest) ([]string, error) {
	err := v.call(ctx, d, "validate", req.Volume)
	if err == nil && !v.made(req.Volume.Name) && v.mode != "lenient" {
		err = status.Error(codes.NotFound, "no such volume")
	}
	return nil, err
}

func (v *volumes) Attach(ctx context.Context, d storage.Driver, req storage.AttachRequest) (map[string]string, error) {
	at := "1"
	if v.mode == "fickle-context" {
		at = v.again()
	}
	return map[string]string{"at": at}, v.call(ctx, d, "attach", req.Volume)
}

func (v *volumes) Detach(ctx context.Context, d storage.Driver, vol storage.Volume, _ string) error {
	return v.call(ctx, d, "detach", vol)
}

func (v *volumes) Stage(ctx context.Context, d storage.Driver, req storage.StageRequest) error {
	if err := v.call(ctx, d, "stage", req.Volume); err != nil {
		return err
	}
	if v.mode == "broken" {
		return status.Error(codes.FailedPrecondition, "it never works")
	}
	v.mu.Lock()
	v.seen["staged"+req.Volume.Name] = true
	v.mu.Unlock()
	return v.done(req.Volume.Name + ".staged")
}

func (v *volumes) Unstage(ctx context.Context, d storage.Driver, vol storage.Volume, _ string) error {
	err := v.call(ctx, d, "unstage", vol)
	if err == nil && v.mode == "strict" && !v.made(vol.Name+".staged") {
		err = status.Error(codes.FailedPrecondition, "it was never staged")
	}
	return err
}

func (v *volumes) Publish(ctx context.Context, d storage.Driver, req storage.PublishRequest) error {
	if err := v.call(ctx, d, "publish", req.Volume); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen["published"+req.Volume.Name] = true
	if v.mode == "mounts-nothing" || mounted(req.TargetPath) {
		return nil
	}
	if err := os.MkdirAll(req.TargetPath, 0o700); err != nil {
		return err
	}
	return unix.Mount("fixture", req.TargetPath, "tmpfs", 0, "size=4k")
}

func (v *volumes) Unpublish(ctx context.Context, d storage.Driver, vol storage.Volume, target string) error {
	if err := v.call(ctx, d, "unpublish", vol); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mode == "remembers" && v.made(vol.Name+".staged") && !v.seen["published"+vol.Name] {
		return status.Error(codes.FailedPrecondition, "this process has not published it")
	}
	if v.mode == "leaves-mount" || !mounted(target) {
		return nil
	}
	if err := unix.Unmount(target, 0); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return os.Remove(target)
}

func mounted(path string) bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(text), " "+path+" ")
}
