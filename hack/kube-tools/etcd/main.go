// Command etcd is the etcd server of the test control plane. The module that etcd publishes has no main package of
// its own, only this entry point.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
