package browser

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/usage"
)

// many is how many volumes a long list has.
const many = 10_000

// A list of 10,000 volumes comes in pages, and a page with all that belongs to it is small.
func TestManyVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	client := r.Client()
	next := make(chan int)
	var creating sync.WaitGroup
	for range 64 {
		creating.Go(func() {
			for n := range next {
				_, err := client.Volumes.CreateVolume(context.Background(), &hostv1.CreateVolumeRequest{
					Spec: &hostv1.VolumeSpec{
						Id: fmt.Sprintf("volume-%05d", n), Name: "v", Type: "csi", PluginId: "local", CapacityMin: 16 << 20,
						Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
					},
				})
				if err != nil {
					t.Errorf("volume %d: %v", n, err)
				}
			}
		})
	}
	for n := range many {
		next <- n
	}
	close(next)
	creating.Wait()
	b := newBrowser(t)
	b.signIn(r, r.reader)
	b.open(r.url("/"))
	b.fresh()
	b.open(r.url("/volumes"))
	b.live()
	paint := value[map[string]float64](b, `Object.fromEntries([
		...performance.getEntriesByType('paint').map(e => [e.name, e.startTime]),
		['first byte', performance.getEntriesByType('navigation')[0].responseStart]])`)
	t.Logf("with %d volumes, in milliseconds: %v", many, paint)
	if weight := b.weight(); weight > 150<<10 {
		t.Errorf("the page and what belongs to it have %d bytes", weight)
	} else {
		t.Logf("the page and what belongs to it have %d bytes", weight)
	}
	visitor := r.visit(t, r.reader)
	pids := []int{r.PID(), int(r.plugin(t, "web").GetPid())}
	const reads = 20
	before := usage.CPU(t, pids...)
	for range reads {
		if res, text := visitor.get("/volumes"); res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", res.Status, text)
		}
	}
	t.Logf("a page takes agent and plugin %v of CPU time", (usage.CPU(t, pids...)-before)/reads)
	if rows := value[int](b, "document.querySelectorAll('tbody tr').length"); rows != 50 {
		t.Errorf("%d rows", rows)
	}
	b.sees(".pages", fmt.Sprintf("1–50 of %d", many))
	b.follow("200")
	b.sees("tbody", "volume-09999")
	b.open(r.url("/volumes?search=-0123"))
	b.sees(".pages", "1–10 of 10")
	b.sees("tbody", "volume-01234")
	b.open(r.url("/volumes?state=taken"))
	b.sees("main", "No volume matches.")
}
