from provi_lab.mutation.command import main

if __name__ == "__main__":
    main()
