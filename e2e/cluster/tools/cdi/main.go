// Command cdi-check loads CDI specs with the library that containerd and CRI-O load them with.
//
// Usage: cdi-check FOLDER…
// Prints the qualified name of every device, one a line; a spec that the library refuses, or a
// device that two specs define, is an error on standard error and exit status 1.
package main

import (
	"fmt"
	"os"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(os.Args[1:]...), cdi.WithAutoRefresh(false))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	failed := false
	for path, problems := range cache.GetErrors() {
		for _, problem := range problems {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, problem)
		}
	}
	fmt.Println(strings.Join(cache.ListDevices(), "\n"))
	if failed {
		os.Exit(1)
	}
}
