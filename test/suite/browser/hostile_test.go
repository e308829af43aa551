package browser

import (
	"fmt"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

// markup runs where a page takes a text for markup, in each of the ways that contexts offer.
const markup = `"'><img src=x onerror=hacked=1><script>hacked=1</script></textarea></title><svg onload=hacked=1> {{.}} javascript:hacked=1`

// Markup in what users can name is text on each page: names of tokens and volumes, filters, paths.
func TestMarkupInNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	r.volume("data")
	client := r.Client()
	ctx := testhost.Soon(t)
	_, err := client.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: &hostv1.VolumeSpec{
		Id: "named", Name: markup, Type: "csi", PluginId: "local", CapacityMin: 16 << 20,
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
	}})
	t.Logf("a volume of that name: %v", err)
	made, err := client.ACL.CreateACLToken(ctx, &hostv1.CreateACLTokenRequest{
		Name: markup, Type: "management",
	})
	secret := r.manager
	if err == nil {
		secret = made.GetSecret()
	}
	t.Logf("a token of that name: %v", err)
	// A start that fails explains why, with what it was given.
	_, err = client.Plugins.SwapPlugin(ctx, &hostv1.SwapPluginRequest{Name: markup})
	t.Logf("a plugin of that name: %v", err)
	b := newBrowser(t)
	b.expect("404", "400", "409", "502")
	b.signIn(r, secret)
	escaped := strings.NewReplacer("%", "%25", " ", "%20", "/", "%2F", "?", "%3F", "#", "%23", `"`, "%22", "<", "%3C", ">", "%3E").Replace(markup)
	for _, path := range []string{
		"/", "/volumes?search=" + escaped, "/volumes?namespace=" + escaped, "/volumes?driver=" + escaped, "/volumes/default/named",
		"/volumes/" + escaped + "/" + escaped, "/nodes/" + escaped, "/workloads/default/" + escaped, "/plugins/" + escaped,
		"/drivers/" + escaped, "/events?match=" + escaped, "/" + escaped, "/do/" + escaped + "?id=" + escaped,
		"/do/delete?namespace=default&id=" + escaped, "/do/detach?namespace=" + escaped + "&id=data&node=" + escaped,
		"/sign-in?to=" + escaped, "/sign-in?to=javascript:hacked=1",
	} {
		b.open(r.url(path))
		bad := value[[]string](b, `[...document.querySelectorAll('script:not([src]), img, [onerror], [onload], [style], a[href^="javascript:"]')].map(e => e.outerHTML)`)
		if len(bad) > 0 || value[bool](b, "'hacked' in window") {
			t.Errorf("%s: %q", path, bad)
		}
	}
	b.open(r.url("/volumes"))
	b.live()
	// The policy stops what gets into a page all the same.
	b.expect("Content Security Policy", "404")
	b.eval(fmt.Sprintf("document.body.insertAdjacentHTML('beforeend', %q)", `<img src=x onerror="hacked=1"><b style="color:red" onclick="hacked=1" id="planted">x</b>`))
	b.eval("document.getElementById('planted').click()")
	if value[bool](b, "'hacked' in window || getComputedStyle(document.getElementById('planted')).color == 'rgb(255, 0, 0)'") {
		t.Error("an inline script or style was used")
	}
}
