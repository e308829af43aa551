package cli

import (
	"cmp"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
)

// entriesPerPage is the number of volumes or snapshots per request to a driver.
const entriesPerPage = 100

// listAgain is how often a list is begun again because the driver no longer knows a page's token.
const listAgain = 3

// paging are the flags of the commands that list what a driver has. Without them everything is listed.
type paging struct {
	size  int32
	token string
}

func (p *paging) flags(f *pflag.FlagSet) {
	f.Int32Var(&p.size, "per-page", 0, "list one page of at most `N` entries")
	f.StringVar(&p.token, "page-token", "", "list the page that `TOKEN` stands for, which the page before names")
}

// given reports whether one page is asked for.
func (p *paging) given() bool { return p.size != 0 || p.token != "" }

// entries gets one page, with the token of the next one, or everything. A driver answers Aborted to a token that is no
// longer valid, and the list begins again (CSI spec, "ListVolumes Errors").
func entries[T any](p *paging, get func(size int32, token string) (page []T, next string, err error)) (all []T,
	next string, err error,
) {
	if p.given() {
		return get(cmp.Or(p.size, entriesPerPage), p.token)
	}
	again := 0
	for token := ""; ; {
		page, next, err := get(entriesPerPage, token)
		if connect.CodeOf(err) == connect.CodeAborted && token != "" && again < listAgain {
			again++
			all, token = nil, ""
			continue
		}
		if err != nil {
			return nil, "", err
		}
		all = append(all, page...)
		// A driver that returns the same token again would cause an endless loop.
		if next == "" || next == token {
			return all, "", nil
		}
		token = next
	}
}
