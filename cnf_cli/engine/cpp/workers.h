// Runs items on a few threads that live for one call: nothing outlives it, so forks and other pools are not disturbed.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cnf {

// work(worker, item) for every item; the calling thread only waits and calls poll() every 50 ms. poll returning false
// sets stop, which the work is expected to look at.
template <class Work, class Poll>
void run(int items, int threads, int &stop, const Work &work, const Poll &poll) {
    std::atomic<int> next{0};
    std::mutex lock;
    std::condition_variable finished;
    int running = threads < items ? threads : items;
    std::vector<std::thread> workers;
    workers.reserve(running);
    const int count = running;
    for (int k = 0; k < count; ++k)
        workers.emplace_back([&, k] {
            for (int item; (item = next.fetch_add(1)) < items && !__atomic_load_n(&stop, __ATOMIC_RELAXED);)
                work(k, item);
            std::lock_guard<std::mutex> hold(lock);
            if (--running == 0) finished.notify_one();
        });
    std::unique_lock<std::mutex> hold(lock);
    while (!finished.wait_for(hold, std::chrono::milliseconds(50), [&] { return running == 0; })) {
        hold.unlock();
        if (!poll()) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        hold.lock();
    }
    hold.unlock();
    for (auto &worker : workers) worker.join();
}

}  // namespace cnf
