package convert_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/convert"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// The kinds' own tests convert each of their types there and back. These are about single rules.

func TestMillisecondsNeverBecomeTheDefault(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
	} {
		m := convert.To[storagev1.FingerprintRequest](storage.FingerprintOptions{Interval: d})
		if m.GetIntervalMs() != want {
			t.Errorf("%v: %d, want %d", d, m.GetIntervalMs(), want)
		}
	}
}

func TestValueThatOneSideDoesNotKnow(t *testing.T) {
	m := convert.To[storagev1.Capability](storage.Capability{AccessMode: "node-of-tomorrow"})
	if m.GetAccessMode() != 0 {
		t.Errorf("%v", m.GetAccessMode())
	}
	c := convert.From[storage.Capability](&storagev1.Capability{AccessMode: 99})
	if c.AccessMode != "" {
		t.Errorf("%q", c.AccessMode)
	}
}

// An absent message and an empty one are the zero value; a pointer tells them apart.
func TestAbsentMessages(t *testing.T) {
	var none *storagev1.FingerprintResponse
	if f := convert.From[storage.Fingerprint](none); f.Controller != nil || f.Healthy {
		t.Errorf("%+v", f)
	}
	f := convert.From[storage.Fingerprint](&storagev1.FingerprintResponse{
		Controller: &storagev1.ControllerCapabilities{},
	})
	if f.Controller == nil || f.Node != nil {
		t.Errorf("%+v", f)
	}
	if m := convert.To[storagev1.CreateRequest](storage.CreateRequest{}); m.GetTopology() != nil {
		t.Errorf("%v", m)
	}
}

// Too large a page is the largest one that the protocol knows, not a negative one.
func TestIntIsLimited(t *testing.T) {
	if m := convert.To[storagev1.ListRequest](storage.Page{Max: 1 << 40}); m.GetMaxEntries() != 1<<31-1 {
		t.Errorf("%d", m.GetMaxEntries())
	}
}

func TestFieldWithoutACounterpart(t *testing.T) {
	defer func() {
		fault, _ := recover().(string)
		for _, part := range []string{"Misspelt", "pannier.plugin.storage.v1.Driver"} {
			if !strings.Contains(fault, part) {
				t.Errorf("panic %q does not name %s", fault, part)
			}
		}
	}()
	convert.To[storagev1.Driver](struct{ Misspelt string }{"x"})
}

func BenchmarkPublishRequest(b *testing.B) {
	req := storage.PublishRequest{
		Volume: storage.Volume{
			Name: "data", ExternalID: "vol-1", Context: map[string]string{"a": "b"},
			Capability: storage.Capability{
				AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem, MountFlags: []string{"ro"},
			},
		},
		StagingPath: "/s", TargetPath: "/t",
	}
	for b.Loop() {
		m := convert.To[storagev1.PublishRequest](req)
		if convert.From[storage.PublishRequest](m).TargetPath != "/t" {
			b.Fatal()
		}
	}
}
